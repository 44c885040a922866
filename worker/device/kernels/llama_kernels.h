// The kernels of a Llama that are not matrix products or attention, one struct of arguments each (block.h).
//
// Stored values have the type T: float, or bfloat16 (core/bfloat16.h) rounded once; arithmetic is float32, sums of a
// row are float32 over lanes. A row is one token. Pointers are to device memory, rows back to back unless a stride is
// given; where a size is a multiple of kPack<T>, arrays of that size begin at a multiple of 16 bytes. Formulas and
// sources are those of worker/model/llama_layers.h, which is their reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/device/kernels/device_math.h"
#include "worker/device/kernels/values.h"

namespace causeway::worker {

// The largest of the row's values, and Σ exp(value − largest), for all lanes.
struct SoftmaxSum {
  float largest, sum;
};
template <typename T, typename Block>
CAUSEWAY_ANYWHERE SoftmaxSum SoftmaxSumOverLanes(Block& block, const T* row, int64_t count, bool packed) {
  typename Block::template PerLane<float> largest_of, sum_of;
  block.Each([&](int lane) { largest_of[lane] = -INFINITY; });
  EachPack<T>(block, count, packed, [&](int lane, int32_t i, auto width) {
    const auto x = Loaded<width>(row + i);
    float largest = largest_of[lane];
    for (const float value : x.values) largest = value > largest ? value : largest;
    float sum = sum_of[lane] * Exponential(largest_of[lane] - largest);
    for (const float value : x.values) sum += Exponential(value - largest);
    largest_of[lane] = largest;
    sum_of[lane] = sum;
  });
  const float largest = MaxOverLanes(block, largest_of);
  block.Each([&](int lane) { sum_of[lane] *= Exponential(largest_of[lane] - largest); });
  return {largest, SumOverLanes<Block, float>(block, sum_of)};
}

// Rotates the pairs (x_i, x_{i + half}) of each head in place: angles of position row mod sequence, or their negatives.
// A block has a few rows of one position. Each lane keeps the angles of its pairs, over the heads of these rows.
template <typename T>
struct RopeKernel {
  static constexpr int64_t kRows = 4;

  T* x;
  const float *cosines, *sines;  // [sequence, half]
  int64_t rows, stride, heads, half, sequence;
  float sign;

  CAUSEWAY_ANYWHERE int64_t blocks() const {
    const int64_t sequences = (rows + sequence - 1) / sequence;
    return (sequences + kRows - 1) / kRows * sequence;
  }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    if (Packs<T>(half) && Packs<T>(stride) && BeginPack({x, cosines, sines})) {
      Turn<kPack<T>>(block);
    } else {
      Turn<1>(block);
    }
  }

 private:
  template <int kWidth, typename Block>
  CAUSEWAY_ANYWHERE void Turn(Block& block) const {
    const int64_t position = block.index() % sequence, first = block.index() / sequence * kRows * sequence + position;
    const int64_t left = (rows - first + sequence - 1) / sequence;
    const auto packs = static_cast<int32_t>(half / kWidth), head_count = static_cast<int32_t>(heads);
    const int32_t all = static_cast<int32_t>(left < kRows ? left : kRows) * head_count;
    const int32_t abreast = packs < kLanes ? kLanes / packs : 1;  // heads at a time
    block.Each([&](int lane) {
      if (lane / packs >= abreast) return;
      for (int32_t pack = lane % packs; pack < packs; pack += kLanes) {
        const int64_t i = pack * kWidth, table = position * half + i;
        const auto c = Loaded<kWidth>(cosines + table), s = Loaded<kWidth>(sines + table);
        for (int32_t at = lane / packs; at < all; at += abreast) {
          T* const head = x + (first + at / head_count * sequence) * stride + at % head_count * 2 * half + i;
          auto a = Loaded<kWidth>(head), b = Loaded<kWidth>(head + half);
          for (int j = 0; j < kWidth; ++j) {
            const float sine = sign * s.values[j], turned = a.values[j] * c.values[j] - b.values[j] * sine;
            b.values[j] = b.values[j] * c.values[j] + a.values[j] * sine;
            a.values[j] = turned;
          }
          StoreAll(a, head);
          StoreAll(b, head + half);
        }
      }
    });
  }
};

// y = silu(gate) · up, of rows |gate|up|.
template <typename T>
struct SwiGluKernel {
  const T* gate_up;
  T* y;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const T *const gate = gate_up + block.index() * 2 * size, *const up = gate + size;
    EachPack<T>(block, size, Packs<T>(size), [&](int, int32_t i, auto width) {
      auto g = Loaded<width>(gate + i);
      const auto u = Loaded<width>(up + i);
      for (int j = 0; j < width; ++j) g.values[j] = g.values[j] * Sigmoid(g.values[j]) * u.values[j];
      StoreAll(g, y + block.index() * size + i);
    });
  }
};

template <typename T>
struct SwiGluBackwardKernel {
  const T *dy, *gate_up;
  T* dgate_up;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t first = block.index() * 2 * size;
    EachPack<T>(block, size, Packs<T>(size), [&](int, int32_t i, auto width) {
      const int64_t at = first + i;
      auto gate = Loaded<width>(gate_up + at), up = Loaded<width>(gate_up + at + size);
      const auto d = Loaded<width>(dy + block.index() * size + i);
      for (int j = 0; j < width; ++j) {
        const float g = gate.values[j], sigma = Sigmoid(g);
        gate.values[j] = d.values[j] * up.values[j] * sigma * (1 + g * (1 - sigma));
        up.values[j] = d.values[j] * g * sigma;
      }
      StoreAll(gate, dgate_up + at);
      StoreAll(up, dgate_up + at + size);
    });
  }
};

// Each row of scores, where row r belongs to position r mod sequence, becomes a softmax over the positions up to its
// own; the others, which lie in the future, become 0. Where T is float, `probabilities` may be `scores`.
template <typename T>
struct CausalSoftmaxKernel {
  const float* scores;  // [rows, sequence]
  T* probabilities;
  int64_t rows, sequence;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const float* const row = scores + block.index() * sequence;
    T* const to = probabilities + block.index() * sequence;
    const int64_t seen = block.index() % sequence + 1;
    const SoftmaxSum softmax = SoftmaxSumOverLanes(block, row, seen, Packs<float>(sequence));
    const float inverse = 1 / softmax.sum;
    block.Each([&](int lane) {
      for (int64_t i = lane; i < sequence; i += kLanes) {
        Store(i < seen ? Exponential(row[i] - softmax.largest) * inverse : 0.0f, to[i]);
      }
    });
  }
};

// dS = P ∘ (dP − Σ dP ∘ P), row by row. Where T is float, `dscores` may be `dprobabilities`.
template <typename T>
struct SoftmaxBackwardKernel {
  const T* probabilities;
  const float* dprobabilities;
  T* dscores;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t first = block.index() * size;
    const T* const p = probabilities + first;
    const float* const d = dprobabilities + first;
    typename Block::template PerLane<float> dots;
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) dots[lane] = std::fma(Load(p[i]), d[i], dots[lane]);
    });
    const float total = SumOverLanes<Block, float>(block, dots);
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) Store(Load(p[i]) * (d[i] - total), dscores[first + i]);
    });
  }
};

// Turns logits into factor · d(loss)/d(logits) in place, and computes each row's loss, −ln p(target), in nats.
template <typename T>
struct ClassifierKernel {
  T* logits;
  const int32_t* targets;
  float* losses;  // [rows]
  int64_t rows;
  int32_t vocab, stride;  // stride: values from a row of logits to the next
  float factor;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    T* const row = logits + block.index() * stride;
    const int32_t target = targets[block.index()];
    const float target_logit = Load(row[target]);
    const SoftmaxSum softmax = SoftmaxSumOverLanes(block, row, vocab, Packs<T>(stride));
    const float scaled = factor / softmax.sum;
    EachPack<T>(block, vocab, Packs<T>(stride), [&](int, int32_t i, auto width) {
      auto x = Loaded<width>(row + i);
      for (int j = 0; j < width; ++j) {
        const float gradient = scaled * Exponential(x.values[j] - softmax.largest);
        x.values[j] = i + j == target ? gradient - factor : gradient;
      }
      StoreAll(x, row + i);
    });
    block.Each([&](int lane) {
      if (lane == 0) losses[block.index()] = std::log(softmax.sum) + softmax.largest - target_logit;
    });
  }
};

}  // namespace causeway::worker
