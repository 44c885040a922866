// The kernels of a Llama that are not matrix products or attention, one struct of arguments each (block.h).
//
// Values that are stored have the type T: float, or bfloat16 (core/bfloat16.h) rounded once; what is computed is
// float32, sums of a row are float32 over lanes. A row is one token. Pointers are to device memory, rows back to back
// unless a stride is given. Formulas and sources are those of worker/train/llama_layers.h, which is their reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/bfloat16.h"
#include "worker/gpu/kernels/block.h"
#include "worker/train/vector_math.h"

namespace causeway::worker {

struct Bfloat16 {
  uint16_t bits;
};

CAUSEWAY_ANYWHERE float Load(float x) { return x; }
CAUSEWAY_ANYWHERE float Load(Bfloat16 x) { return core::FromBfloat16(x.bits); }
CAUSEWAY_ANYWHERE void Store(float x, float& to) { to = x; }
CAUSEWAY_ANYWHERE void Store(float x, Bfloat16& to) { to.bits = core::ToBfloat16(x); }

inline constexpr int64_t kValuesPerBlock = 8 * kLanes;  // of kernels that take values one by one
CAUSEWAY_ANYWHERE int64_t BlocksOf(int64_t values) { return (values + kValuesPerBlock - 1) / kValuesPerBlock; }

// Calls f(i) for the block's share of `count` values.
template <typename Block, typename F>
CAUSEWAY_ANYWHERE void EachValue(Block& block, int64_t count, const F& f) {
  const int64_t first = block.index() * kValuesPerBlock;
  const int64_t end = first + kValuesPerBlock < count ? first + kValuesPerBlock : count;
  block.Each([&](int lane) {
    for (int64_t i = first + lane; i < end; i += kLanes) f(i);
  });
}

// Σ a(i) · b(i) over i < count, for all lanes: each sums its share, and then the lanes are summed.
template <typename Block, typename A, typename B>
CAUSEWAY_ANYWHERE float DotOverLanes(Block& block, int64_t count, const A& a, const B& b) {
  typename Block::template PerLane<float> dots;
  block.Each([&](int lane) {
    float dot = 0;
    for (int64_t i = lane; i < count; i += kLanes) dot = std::fma(a(i), b(i), dot);
    dots[lane] = dot;
  });
  return SumOverLanes<Block, float>(block, dots);
}

// The largest of x(i), i < count, and Σ exp(x(i) − largest), for all lanes.
struct SoftmaxSum {
  float largest, sum;
};
template <typename Block, typename X>
CAUSEWAY_ANYWHERE SoftmaxSum SoftmaxSumOverLanes(Block& block, int64_t count, const X& x) {
  typename Block::template PerLane<float> values;
  block.Each([&](int lane) {
    float largest = -INFINITY;
    for (int64_t i = lane; i < count; i += kLanes) largest = x(i) > largest ? x(i) : largest;
    values[lane] = largest;
  });
  const float largest = MaxOverLanes(block, values);
  block.Each([&](int lane) {
    float sum = 0;
    for (int64_t i = lane; i < count; i += kLanes) sum += FastExp(x(i) - largest);
    values[lane] = sum;
  });
  return {largest, SumOverLanes<Block, float>(block, values)};
}

// y[row] = w[tokens[row]].
template <typename T>
struct EmbeddingKernel {
  const int32_t* tokens;
  const T* w;
  T* y;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const T* const from = w + tokens[block.index()] * size;
    T* const to = y + block.index() * size;
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) to[i] = from[i];
    });
  }
};

// dw[token] += Σ dy of its rows, in their order. Rows are sorted by token; token j of those that occur has rows
// order[begins[j]] to order[begins[j + 1] − 1].
template <typename T>
struct EmbeddingBackwardKernel {
  const int32_t *order, *begins, *tokens;
  const T* dy;
  float* dw;
  int64_t occurring, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return occurring; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t j = block.index();
    float* const to = dw + tokens[j] * size;
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) {
        float sum = to[i];
        for (int32_t row = begins[j]; row < begins[j + 1]; ++row) sum += Load(dy[order[row] * size + i]);
        to[i] = sum;
      }
    });
  }
};

// y = x · r · w with r = 1/√(mean(x²) + ε) of each row, kept in scale.
template <typename T>
struct RmsNormKernel {
  const T *x, *w;
  T* y;
  float* scale;
  int64_t rows, size;
  float epsilon;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const T* const from = x + block.index() * size;
    T* const to = y + block.index() * size;
    const auto x_at = [&](int64_t i) { return Load(from[i]); };
    const float total = DotOverLanes(block, size, x_at, x_at);
    const float r = 1 / std::sqrt(total / static_cast<float>(size) + epsilon);
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) Store(Load(from[i]) * r * Load(w[i]), to[i]);
      if (lane == 0) scale[block.index()] = r;
    });
  }
};

// dx += r (w dy − x · r²/n · Σ w dy x), row by row.
template <typename T>
struct RmsNormBackwardKernel {
  const T *dy, *x, *w;
  const float* scale;
  T* dx;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t first = block.index() * size;
    const float total = DotOverLanes(
        block, size, [&](int64_t i) { return Load(w[i]) * Load(dy[first + i]); },
        [&](int64_t i) { return Load(x[first + i]); });
    const float r = scale[block.index()];
    const float pull = r * r * r / static_cast<float>(size) * total;
    block.Each([&](int lane) {
      for (int64_t i = first + lane; i < first + size; i += kLanes) {
        Store(Load(dx[i]) + r * Load(w[i - first]) * Load(dy[i]) - pull * Load(x[i]), dx[i]);
      }
    });
  }
};

// partials[share] = Σ dy · x · r over the rows share, share + shares, …: half of the weight's gradient, which
// AddPartialsKernel ends.
template <typename T>
struct RmsNormWeightKernel {
  const T *dy, *x;
  const float* scale;
  float* partials;  // [shares, size]
  int64_t rows, size, shares;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return shares; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) {
        float sum = 0;
        for (int64_t row = block.index(); row < rows; row += shares) {
          sum = std::fma(Load(dy[row * size + i]) * Load(x[row * size + i]), scale[row], sum);
        }
        partials[block.index() * size + i] = sum;
      }
    });
  }
};

// dw += Σ over shares, in their order.
struct AddPartialsKernel {
  const float* partials;
  float* dw;
  int64_t size, shares;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(size); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, size, [&](int64_t i) {
      float sum = dw[i];
      for (int64_t share = 0; share < shares; ++share) sum += partials[share * size + i];
      dw[i] = sum;
    });
  }
};

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
      for (int64_t pair = lane; pair < heads * half; pair += kLanes) {
        const int64_t i = pair % half;
        T* const head = row + pair / half * 2 * half;
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

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(rows * size); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, rows * size, [&](int64_t i) {
      const T* const at = gate_up + i / size * 2 * size + i % size;
      Store(Load(at[0]) * Logistic(Load(at[0])) * Load(at[size]), y[i]);
    });
  }
};

template <typename T>
struct SwiGluBackwardKernel {
  const T *dy, *gate_up;
  T* dgate_up;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(rows * size); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, rows * size, [&](int64_t i) {
      const int64_t at = i / size * 2 * size + i % size;
      const float g = Load(gate_up[at]), up = Load(gate_up[at + size]), d = Load(dy[i]);
      const float sigma = Logistic(g);
      Store(d * g * sigma, dgate_up[at + size]);
      Store(d * up * sigma * (1 + g * (1 - sigma)), dgate_up[at]);
    });
  }
};

// Each row of scores, of which row r belongs to position r mod sequence, becomes a softmax over the positions up to its
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
    const SoftmaxSum softmax = SoftmaxSumOverLanes(block, seen, [&](int64_t i) { return row[i]; });
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
    const float total = DotOverLanes(
        block, size, [&](int64_t i) { return Load(p[i]); }, [&](int64_t i) { return d[i]; });
    block.Each([&](int lane) {
      for (int64_t i = lane; i < size; i += kLanes) Store(Load(p[i]) * (d[i] - total), dscores[first + i]);
    });
  }
};

// Turns logits into factor · d(loss)/d(logits) in place, and says each row's loss, −ln p(target), in nats.
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
    const SoftmaxSum softmax = SoftmaxSumOverLanes(block, vocab, [&](int64_t i) { return Load(row[i]); });
    block.Each([&](int lane) {
      for (int64_t i = lane; i < vocab; i += kLanes) {
        const float p = FastExp(Load(row[i]) - softmax.largest) / softmax.sum;
        Store(factor * (i == target ? p - 1 : p), row[i]);
      }
      if (lane == 0) losses[block.index()] = std::log(softmax.sum) + softmax.largest - target_logit;
    });
  }
};

}  // namespace causeway::worker
