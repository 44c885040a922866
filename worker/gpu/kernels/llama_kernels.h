// The kernels of a Llama that are not matrix products or attention, one struct of arguments each (block.h).
//
// Stored values have the type T: float, or bfloat16 (core/bfloat16.h) rounded once; arithmetic is float32, sums of a
// row are float32 over lanes. A row is one token. Pointers are to device memory, rows back to back unless a stride is
// given; where a size is a multiple of kPack<T>, arrays of that size begin at a multiple of 16 bytes. Formulas and
// sources are those of worker/train/llama_layers.h, which is their reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/gpu/kernels/values.h"
#include "worker/train/vector_math.h"

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
    float sum = sum_of[lane] * FastExp(largest_of[lane] - largest);
    for (const float value : x.values) sum += FastExp(value - largest);
    largest_of[lane] = largest;
    sum_of[lane] = sum;
  });
  const float largest = MaxOverLanes(block, largest_of);
  block.Each([&](int lane) { sum_of[lane] *= FastExp(largest_of[lane] - largest); });
  return {largest, SumOverLanes<Block, float>(block, sum_of)};
}

// Rotates the pairs (x_i, x_{i + half}) of each head in place: angles of position row mod sequence, or their negatives.
template <typename T>
struct RopeKernel {
  T* x;
  const float *cosines, *sines;  // [sequence, half]
  int64_t rows, stride, heads, half, sequence;
  float sign;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    T* const row = x + block.index() * stride;
    const int64_t table = block.index() % sequence * half;
    block.Each([&](int lane) {
      const auto width = static_cast<int32_t>(half), pairs = static_cast<int32_t>(heads * half);
      for (int32_t pair = lane; pair < pairs; pair += kLanes) {  // 32 bits: a GPU divides these quickly
        const int32_t i = pair % width;
        T* const head = row + pair / width * 2 * width;
        const float c = cosines[table + i], s = sign * sines[table + i];
        const float a = Load(head[i]), b = Load(head[i + half]);
        Store(a * c - b * s, head[i]);
        Store(b * c + a * s, head[i + half]);
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
      for (int j = 0; j < width; ++j) g.values[j] = g.values[j] * Logistic(g.values[j]) * u.values[j];
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
        const float g = gate.values[j], sigma = Logistic(g);
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
        Store(i < seen ? FastExp(row[i] - softmax.largest) * inverse : 0.0f, to[i]);
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
  int32_t vocab, stride;  // from a row of logits to the next
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
        const float gradient = scaled * FastExp(x.values[j] - softmax.largest);
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
