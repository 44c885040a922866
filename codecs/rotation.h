// The randomized Hadamard transform of a block: spreads the energy of a heavy tail, so that one scale fits all 256
// values.
//
//   y = H · (s ⊙ x) · 2⁻⁴       x = s ⊙ (H · y) · 2⁻⁴        s: signs, H: 256 × 256 Hadamard in natural order
//
// H is applied as radix-2 stages of distance 1, 2, 4, … 128, in that order: (a, b) ← (a + b, a − b) for the pairs
// (i, i + distance). Each is one rounding, so any vectorization gives the same bits. The signs come from the run's
// seed: the same for every site, version and leg, so residuals and sums may live in the rotated domain for the whole
// run. Source: docs/wire_format.md (DRIVE, arXiv 2105.08339; EDEN, arXiv 2108.08842).
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/layout.h"

namespace causeway::codecs {

// A rotated block's norm is that of the block, so no coefficient is above 16 times its largest value. Below 2^94 all
// of it, and what is decoded from it, stays below core::kMaxMagnitude.
inline constexpr float kMaxRotatedMagnitude = 0x1p94f;

// Selects the signs: those of the blocks from `first_block` of a fragment on.
struct Rotation {
  uint64_t seed = 0;
  int64_t first_block = 0;  // counted in the fragment
};

// The rotation seed of a fragment, which its chunks carry.
uint64_t RotationSeed(uint64_t run_seed, core::FragmentId fragment);

// Bit i mod 64 of word i / 64 is set where value i of the block changes its sign. Word w is output 4 · block + w of
// splitmix64 that starts at `seed`.
struct BlockSigns {
  uint64_t words[core::kBlockValues / 64];
};
BlockSigns SignsOf(uint64_t seed, int64_t block);

using BlockSpan = std::span<float, core::kBlockValues>;
void Rotate(const BlockSigns& signs, BlockSpan block);
void Unrotate(const BlockSigns& signs, BlockSpan block);

// Whole blocks, in place.
void Rotate(const Rotation& rotation, std::span<float> values);
void Unrotate(const Rotation& rotation, std::span<float> values);

}  // namespace causeway::codecs
