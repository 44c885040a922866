// `merge: radial_directional`: lengths and directions of the sites' steps are averaged separately, tensor by tensor, so
// that differing steps do not shorten each other and η stays valid when the number of sites changes.
//
//   g = L · φ(Σ λ_m φ(d_m)),   L = Σ λ_m f_m ‖d_m‖,   φ(x) = x / ‖x‖,   φ(0) = 0
//     = Σ w_m d_m,             w_m = L λ_m / (‖d_m‖ r),   r = ‖Σ λ_m φ(d_m)‖
//
// So a merge is still a weighted sum, as for the average, and only the weights require reading a tensor twice
// beforehand:
//
//   pass 1a   n_m = ‖d_m‖                       for each site
//   pass 1b   r = ‖Σ a_m d_m‖                   all sites, tile by tile in one buffer; only each block's sum is kept
//   pass 2    the merge (server/merge/merge.h) with w_m
//
// Every rounding, with sites in the merge's order and R the sum of λ_m over the sites that count (λ_m > 0, n_m > 0):
//
//   ‖x‖   double: the root of the blocks' sums of squares, added in block order; within a block the order of the wire
//         format's sums (codecs::SumOverBlock). The square of a float is exact in double.
//   n_m   0 where below 2^-100 (core::kMinScale), or a_m could overflow
//   a_m   float(λ_m / R / n_m); Σ a_m d_m in float by fma, as in the merge
//   w_m   float(L / r · (λ_m / R / n_m)), all but the last step in double; 0 for sites that do not count
//
// d_m are the values of the site's chunks, decoded in their codec's domain. A rotation is orthonormal, so lengths are
// the same there and nothing is rotated back; a tensor's last block counts whole, including its decoded padding.
//
// f_m is the factor by which a long contribution is scaled (values.clip): it shortens L, and turns no direction.
//
// The weights are those of the average, λ_m f_m, bit by bit:
//   - for embeddings: a site moves only the rows of tokens it saw, and directions of different rows do not compare;
//   - where fewer than two sites count: both formulas then agree (one site alone: exactly its d);
//   - where the mean direction degenerates: r < kSmallestMeanDirection;
//   - where L / r or a w_m is 2^100 or more, which only absurd contributions reach: sums could leave float's range.
// Source: arXiv 2604.21428; docs/decisions/0008-radial-directional-merge.md. Pure, with the same bits for any number of
// threads: all threads compute blocks' sums, which are added in order.
#pragma once

#include <span>
#include <vector>

#include "core/fragment_map.h"
#include "core/thread_team.h"
#include "server/merge/contribution.h"

namespace causeway::server {

// Independent steps of M sites have r near M^-½, 2^-5 for the maximum number of sites (core::kMaxSites); the roundings
// of that many sums in float are under 2^-14. In between, the mean still carries direction.
inline constexpr double kSmallestMeanDirection = 0x1p-10;

// λ_m f_m.
std::vector<float> ScaledWeights(std::span<const float> weights, std::span<const float> factors);

// w_m of each tensor, from λ_m and f_m of the round.
std::vector<std::vector<float>> RadialDirectionalWeights(std::span<const core::TensorPlace> tensors,
                                                         std::span<const ContributionReader> contributions,
                                                         std::span<const float> weights, std::span<const float> factors,
                                                         core::ThreadTeam& threads);

}  // namespace causeway::server
