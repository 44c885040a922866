// RMSNorm on a device (block.h): forward, and backward in two parts. Conventions are those of llama_kernels.h; the
// reference is worker/model/llama_layers.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/device/kernels/partials.h"
#include "worker/device/kernels/values.h"

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

// The terms of the backward pass; each rounding is written, so that kernels that share them have the same bits.
template <int N>
CAUSEWAY_ANYWHERE float AddNormDots(const Floats<N>& w, const Floats<N>& dy, const Floats<N>& x, float dots) {
  for (int j = 0; j < N; ++j) dots = std::fma(w.values[j] * dy.values[j], x.values[j], dots);
  return dots;
}
CAUSEWAY_ANYWHERE float NormPull(float r, float dots, int64_t size) {
  return r * r * r / static_cast<float>(size) * dots;
}
template <int N>
CAUSEWAY_ANYWHERE void AddNormGradient(const Floats<N>& w, const Floats<N>& dy, const Floats<N>& x, float r, float pull,
                                       Floats<N>& dx) {
  for (int j = 0; j < N; ++j) {
    dx.values[j] = std::fma(r * w.values[j], dy.values[j], std::fma(-pull, x.values[j], dx.values[j]));
  }
}
template <int N>
CAUSEWAY_ANYWHERE void AddNormWeight(const Floats<N>& dy, const Floats<N>& x, float r, Floats<N>& dw) {
  for (int j = 0; j < N; ++j) dw.values[j] = std::fma(dy.values[j] * x.values[j], r, dw.values[j]);
}

// dx = addend + r (w dy − x · r²/n · Σ w dy x), row by row.
template <typename T>
struct RmsNormBackwardKernel {
  const T *dy, *x, *w, *addend;  // addend may be null (none) or dx
  const float* scale;
  T* dx;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t first = block.index() * size;
    typename Block::template PerLane<float> dots;
    EachPack<T>(block, size, Packs<T>(size), [&](int lane, int32_t i, auto width) {
      dots[lane] =
          AddNormDots(Loaded<width>(w + i), Loaded<width>(dy + first + i), Loaded<width>(x + first + i), dots[lane]);
    });
    const float total = SumOverLanes<Block, float>(block, dots);
    const float r = scale[block.index()], pull = NormPull(r, total, size);
    EachPack<T>(block, size, Packs<T>(size), [&](int, int32_t i, auto width) {
      auto sums = addend == nullptr ? Floats<width>{} : Loaded<width>(addend + first + i);
      AddNormGradient(Loaded<width>(w + i), Loaded<width>(dy + first + i), Loaded<width>(x + first + i), r, pull, sums);
      StoreAll(sums, dx + first + i);
    });
  }
};

// partials[share] = Σ dy · x · r over the rows share, share + shares, …: the first half of the weight's gradient, which
// AddPartialsKernel completes. A block has a share of the rows and a pack of columns for each lane.
template <typename T>
struct RmsNormWeightKernel {
  const T *dy, *x;
  const float* scale;
  float* partials;  // [shares, size]
  int64_t rows, size, shares;

  CAUSEWAY_ANYWHERE int64_t columns() const {
    const int64_t wide = kLanes * (Packs<T>(size) ? kPack<T> : 1);
    return (size + wide - 1) / wide;
  }
  CAUSEWAY_ANYWHERE int64_t blocks() const { return shares * columns(); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    Packs<T>(size) ? Sum<kPack<T>>(block) : Sum<1>(block);
  }

 private:
  template <int kWidth, typename Block>
  CAUSEWAY_ANYWHERE void Sum(Block& block) const {
    const int64_t share = block.index() / columns(), column = block.index() % columns() * kLanes * kWidth;
    block.Each([&](int lane) {
      const int64_t i = column + lane * kWidth;
      if (i >= size) return;
      Floats<kWidth> sums = {};
      for (int64_t row = share; row < rows; row += shares) {
        AddNormWeight(Loaded<kWidth>(dy + row * size + i), Loaded<kWidth>(x + row * size + i), scale[row], sums);
      }
      StoreAll(sums, partials + share * size + i);
    });
  }
};

// RmsNormBackwardKernel and RmsNormWeightKernel in one, with their bits: each value is read once. For rows of packs, at
// most kPacks a lane, which stay in registers.
template <typename T, int kPacks>
struct RmsNormBackwardBothKernel {
  static constexpr int kWidth = kPack<T>;
  static bool Takes(int64_t size) { return Packs<T>(size) && size <= kPacks * kWidth * kLanes; }

  const T *dy, *x, *w, *addend;
  const float* scale;
  T* dx;
  float* partials;  // [shares, size]
  int64_t rows, size, shares;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return shares; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    using Values = typename Block::template PerLane<Row>;
    Values weights, gradients, inputs, sums, dw;
    Each(block, [&](int lane, int k, int64_t i) { weights[lane].packs[k] = Loaded<kWidth>(w + i); });
    for (int64_t row = block.index(); row < rows; row += shares) {
      const int64_t first = row * size;
      typename Block::template PerLane<float> dots;
      Each(block, [&](int lane, int k, int64_t i) {
        gradients[lane].packs[k] = Loaded<kWidth>(dy + first + i);
        inputs[lane].packs[k] = Loaded<kWidth>(x + first + i);
        sums[lane].packs[k] = addend == nullptr ? Floats<kWidth>{} : Loaded<kWidth>(addend + first + i);
        dots[lane] = AddNormDots(weights[lane].packs[k], gradients[lane].packs[k], inputs[lane].packs[k], dots[lane]);
      });
      const float total = SumOverLanes<Block, float>(block, dots);
      const float r = scale[row], pull = NormPull(r, total, size);
      Each(block, [&](int lane, int k, int64_t i) {
        AddNormGradient(weights[lane].packs[k], gradients[lane].packs[k], inputs[lane].packs[k], r, pull,
                        sums[lane].packs[k]);
        StoreAll(sums[lane].packs[k], dx + first + i);
        AddNormWeight(gradients[lane].packs[k], inputs[lane].packs[k], r, dw[lane].packs[k]);
      });
    }
    Each(block, [&](int lane, int k, int64_t i) { StoreAll(dw[lane].packs[k], partials + block.index() * size + i); });
  }

 private:
  struct Row {
    Floats<kWidth> packs[kPacks];
  };

  // Calls f(lane, k, i) for the packs of each lane, number k of them at value i: EachPack's order.
  template <typename Block, typename F>
  CAUSEWAY_ANYWHERE void Each(Block& block, const F& f) const {
    block.Each([&](int lane) {
      for (int k = 0; k < kPacks; ++k) {
        const int64_t i = (k * kLanes + lane) * kWidth;
        if (i < size) f(lane, k, i);
      }
    });
  }
};

}  // namespace causeway::worker
