// Kernels over flat arrays: gradients, parameters, and the operations of a sync on them (block.h). Their bits are the
// host's: the CUDA backend compiles those that are marked kHostsBits without contraction of products and sums.
#pragma once

#include "core/outer_step.h"
#include "worker/device/kernels/values.h"

namespace causeway::worker {

template <typename T>
struct FillKernel {
  static constexpr bool kHostsBits = true;
  T* values;
  int64_t count;
  float value;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue<kPack<T>>(block, count, BeginPack({values}), [&](int64_t i, auto width) {
      Floats<width> filled;
      for (float& each : filled.values) each = value;
      StoreAll(filled, values + i);
    });
  }
};

// Rounds where `To` is narrower.
template <typename From, typename To>
struct CopyKernel {
  static constexpr bool kHostsBits = true;
  const From* from;
  To* to;
  int64_t count;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    constexpr int kWidth = kPack < From >> kPack<To> ? kPack<From> : kPack<To>;
    EachValue<kWidth>(block, count, BeginPack({from, to}),
                      [&](int64_t i, auto width) { StoreAll(Loaded<width>(from + i), to + i); });
  }
};

// Adds a sum to another, and begins anew: to += from, from = 0.
struct MoveSumKernel {
  static constexpr bool kHostsBits = true;
  float *from, *to;
  int64_t count;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    EachValue<kPack<float>>(block, count, BeginPack({from, to}), [&](int64_t i, auto width) {
      auto sum = Loaded<width>(to + i), part = Loaded<width>(from + i);
      for (int lane = 0; lane < width; ++lane) {
        sum.values[lane] += part.values[lane];
        part.values[lane] = 0;
      }
      StoreAll(sum, to + i);
      StoreAll(part, from + i);
    });
  }
};

// `count` values from `from`, on the device, to be copied to `to` + `at`.
struct GatherPiece {
  const float* from;
  int64_t at, count, first_block;
};

// Copies separate pieces in one launch. The lanes of a piece begin at the 128-byte line of its first value, and lanes
// before that value do nothing: so each access of 32 lanes is to one line, however the piece is aligned (arXiv
// 2103.03330, section 4.5).
struct GatherKernel {
  static constexpr bool kHostsBits = true;
  static constexpr int64_t kLineValues = 128 / sizeof(float);

  const GatherPiece* pieces;  // each of at least one value; ordered by first block
  float* to;
  int64_t count, all_blocks;  // number of pieces, and of their blocks

  CAUSEWAY_ANYWHERE static int64_t SkippedLanes(const float* from) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(from) / sizeof(float)) % kLineValues;
  }
  CAUSEWAY_ANYWHERE static int64_t BlocksOf(const float* from, int64_t values) {
    return worker::BlocksOf(SkippedLanes(from) + values);
  }

  // The last piece that begins at this block or before.
  CAUSEWAY_ANYWHERE static const GatherPiece& PieceOf(const GatherPiece* pieces, int64_t count, int64_t block) {
    int64_t piece = 0, beyond = count;
    while (beyond - piece > 1) {
      const int64_t middle = (piece + beyond) / 2;
      (pieces[middle].first_block <= block ? piece : beyond) = middle;
    }
    return pieces[piece];
  }

  // The index of the value for the block's first lane; negative indices are skipped.
  CAUSEWAY_ANYWHERE static int64_t FirstOf(const GatherPiece& piece, int64_t block) {
    return (block - piece.first_block) * kValuesPerBlock - SkippedLanes(piece.from);
  }

  CAUSEWAY_ANYWHERE int64_t blocks() const { return all_blocks; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const GatherPiece& mine = PieceOf(pieces, count, block.index());
    const int64_t first = FirstOf(mine, block.index());
    block.Each([&](int lane) {
      for (int64_t i = first + lane; i < first + kValuesPerBlock && i < mine.count; i += kLanes) {
        if (i >= 0) to[mine.at + i] = mine.from[i];
      }
    });
  }
};

// sums[share] = Σ x² over the packs share, share + shares, … of lanes; in double, where no sum of float squares
// overflows. `values` begin at a multiple of 16 bytes.
struct SumOfSquaresKernel {
  static constexpr bool kHostsBits = true;
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

// values[i] ← f(given[i], values[i]).
template <typename Block, typename F>
CAUSEWAY_ANYWHERE void ChangeEach(Block& block, const float* given, float* values, int64_t count, const F& f) {
  EachValue<kPack<float>>(block, count, BeginPack({given, values}), [&](int64_t i, auto width) {
    const auto a = Loaded<width>(given + i);
    auto b = Loaded<width>(values + i);
    for (int j = 0; j < width; ++j) b.values[j] = f(a.values[j], b.values[j]);
    StoreAll(b, values + i);
  });
}

// Plain SGD, as offload::SgdStep: p ← fma(p, −lr·wd, p) where there is decay, then p ← fma(g · scale, −lr, p).
struct SgdKernel {
  static constexpr bool kHostsBits = true;
  const float* gradient;
  float* parameters;
  int64_t count;
  float minus_lr, minus_decay, gradient_scale;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    ChangeEach(block, gradient, parameters, count, [&](float g, float p) {
      return std::fma(g * gradient_scale, minus_lr, minus_decay == 0 ? p : std::fma(p, minus_decay, p));
    });
  }
};

// θ ← fma(α, θ, (1 − α) W): core::MixAnchor.
struct MixKernel {
  static constexpr bool kHostsBits = true;
  const float* anchor;
  float* parameters;
  int64_t count;
  float alpha;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const float rest = 1 - alpha;
    ChangeEach(block, anchor, parameters, count,
               [&](float w, float theta) { return core::MixedValue(alpha, rest, w, theta); });
  }
};

// θ ← fma(−η, s, θ): core::Rebase.
struct RebaseKernel {
  static constexpr bool kHostsBits = true;
  const float* step;
  float* parameters;
  int64_t count;
  float lr;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return BlocksOf(count); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    ChangeEach(block, step, parameters, count, [&](float s, float theta) { return core::RebasedValue(-lr, s, theta); });
  }
};

}  // namespace causeway::worker
