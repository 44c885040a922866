// RMSNorm on a device (block.h): forward, and backward in two parts. Conventions are those of llama_kernels.h; the
// reference is worker/train/llama_layers.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/gpu/kernels/partials.h"
#include "worker/gpu/kernels/values.h"

namespace causeway::worker {

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
    typename Block::template PerLane<float> squares;
    EachPack<T>(block, size, Packs<T>(size), [&](int lane, int32_t i, auto width) {
      for (const float value : Loaded<width>(from + i).values) squares[lane] = std::fma(value, value, squares[lane]);
    });
    const float total = SumOverLanes<Block, float>(block, squares);
    const float r = 1 / std::sqrt(total / static_cast<float>(size) + epsilon);
    block.Each([&](int lane) {
      if (lane == 0) scale[block.index()] = r;
    });
    EachPack<T>(block, size, Packs<T>(size), [&](int, int32_t i, auto width) {
      auto values = Loaded<width>(from + i);
      const auto weights = Loaded<width>(w + i);
      for (int j = 0; j < width; ++j) values.values[j] *= r * weights.values[j];
      StoreAll(values, to + i);
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
    typename Block::template PerLane<float> dots;
    EachPack<T>(block, size, Packs<T>(size), [&](int lane, int32_t i, auto width) {
      const auto weights = Loaded<width>(w + i), d = Loaded<width>(dy + first + i), at = Loaded<width>(x + first + i);
      for (int j = 0; j < width; ++j) {
        dots[lane] = std::fma(weights.values[j] * d.values[j], at.values[j], dots[lane]);
      }
    });
    const float total = SumOverLanes<Block, float>(block, dots);
    const float r = scale[block.index()];
    const float pull = r * r * r / static_cast<float>(size) * total;
    EachPack<T>(block, size, Packs<T>(size), [&](int, int32_t i, auto width) {
      const auto weights = Loaded<width>(w + i), d = Loaded<width>(dy + first + i), at = Loaded<width>(x + first + i);
      auto sums = Loaded<width>(dx + first + i);
      for (int j = 0; j < width; ++j) {
        sums.values[j] += r * weights.values[j] * d.values[j] - pull * at.values[j];
      }
      StoreAll(sums, dx + first + i);
    });
  }
};

// partials[share] = Σ dy · x · r over the rows share, share + shares, …: the first half of the weight's gradient, which
// AddPartialsKernel completes. A block has a share of the rows and kLanes columns.
template <typename T>
struct RmsNormWeightKernel {
  const T *dy, *x;
  const float* scale;
  float* partials;  // [shares, size]
  int64_t rows, size, shares;

  CAUSEWAY_ANYWHERE int64_t columns() const { return (size + kLanes - 1) / kLanes; }
  CAUSEWAY_ANYWHERE int64_t blocks() const { return shares * columns(); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t share = block.index() / columns(), column = block.index() % columns() * kLanes;
    block.Each([&](int lane) {
      const int64_t i = column + lane;
      if (i >= size) return;
      float sum = 0;
      for (int64_t row = share; row < rows; row += shares) {
        sum = std::fma(Load(dy[row * size + i]) * Load(x[row * size + i]), scale[row], sum);
      }
      partials[share * size + i] = sum;
    });
  }
};

}  // namespace causeway::worker
