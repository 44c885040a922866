// Kernels over flat arrays of float32: gradients, parameters, and what a sync does with them (block.h).
#pragma once

#include "core/outer_step_value.h"
#include "worker/gpu/kernels/values.h"

namespace causeway::worker {

template <typename T>
struct FillKernel {
  T* values;
  int64_t count;
  float value;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, count, [&](int64_t i) { Store(value, values[i]); });
  }
};

// Rounds where `To` is narrower.
template <typename From, typename To>
struct CopyKernel {
  const From* from;
  To* to;
  int64_t count;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, count, [&](int64_t i) { Store(Load(from[i]), to[i]); });
  }
};

// sums[share] = Σ x² over the packs share, share + shares, … of lanes; in double, where no sum of float squares
// overflows. `values` begin at a multiple of 16 bytes.
struct SumOfSquaresKernel {
  const float* values;
  double* sums;  // [shares]
  int64_t count, shares;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return shares; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    constexpr int kWidth = kPack<float>;
    const int64_t whole = count / kWidth * kWidth;
    typename Block::template PerLane<double> squares;
    block.Each([&](int lane) {
      const int64_t first = block.index() * kLanes + lane;
      double sum = 0;
      for (int64_t i = first * kWidth; i < whole; i += shares * kLanes * kWidth) {
        for (const double x : Loaded<kWidth>(values + i).values) sum += x * x;
      }
      for (int64_t i = whole + first; i < count; i += shares * kLanes) {
        sum += static_cast<double>(values[i]) * values[i];
      }
      squares[lane] = sum;
    });
    const double total = SumOverLanes<Block, double>(block, squares);
    block.Each([&](int lane) {
      if (lane == 0) sums[block.index()] = total;
    });
  }
};

// Plain SGD, as offload::SgdStep: p ← fma(p, −lr·wd, p) where there is decay, then p ← fma(g · scale, −lr, p).
struct SgdKernel {
  const float* gradient;
  float* parameters;
  int64_t count;
  float minus_lr, minus_decay, gradient_scale;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, count, [&](int64_t i) {
      const float p = minus_decay == 0 ? parameters[i] : std::fma(parameters[i], minus_decay, parameters[i]);
      parameters[i] = std::fma(gradient[i] * gradient_scale, minus_lr, p);
    });
  }
};

// θ ← fma(α, θ, (1 − α) W): core::MixAnchor.
struct MixKernel {
  const float* anchor;
  float* parameters;
  int64_t count;
  float alpha;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const float rest = 1 - alpha;
    EachValue(block, count,
              [&](int64_t i) { parameters[i] = core::MixedValue(alpha, rest, anchor[i], parameters[i]); });
  }
};

// θ ← fma(−η, s, θ): core::Rebase.
struct RebaseKernel {
  const float* step;
  float* parameters;
  int64_t count;
  float lr;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue(block, count, [&](int64_t i) { parameters[i] = core::RebasedValue(-lr, step[i], parameters[i]); });
  }
};

}  // namespace causeway::worker
