// The arithmetic of a round: contributions in, update and new anchors out, one pass over memory, tile by tile.
//
//   contributions (encoded, in site order) ─► acc = Σ λ_m d_m ─► x = acc + β ē ─► encode ─► chunk of the update
//                                                                  ē ← x − g ◄── decode ◄──┘ │
//                                                          digest ◄── outer step on v and W ◄─┘
//
// A tile is one chunk of the update, so each chunk can leave while later tiles are still merged. Determinism (invariant
// 3): sites in bytewise order of name, blocks independent, arithmetic of core/outer_step.h. Contributions were checked
// when they came in, so a merge cannot fail half-way, with one exception it checks for first: sums beyond the codecs'
// range. Source: PROTOCOL.md sections 1 and 3.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codecs/chunk.h"
#include "core/digest.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/outer_step.h"

namespace causeway::server {

// What the coordinator holds of a fragment: 12 bytes a parameter, padded layout. One owner at a time.
struct FragmentState {
  core::Version version = 0;
  std::vector<float> anchor;    // W
  std::vector<float> momentum;  // v
  std::vector<float> residual;  // ē; empty when feedback_down is 0

  uint64_t Digest() const { return core::DigestUnits(anchor, 0); }
};

// A complete, valid contribution: chunks in unit order that cover the fragment.
struct MergeInput {
  core::SiteId site;
  float weight = 0;  // λ_m, normalised
  std::span<const codecs::ChunkView> chunks;
};

struct MergeSettings {
  core::OuterParameters outer;
  core::CodecId down = core::CodecId::kInt4;
  float feedback_down = 0;
};

// λ_m = float(w_m / Σ w), computed in double.
std::vector<float> NormalizedWeights(std::span<const double> weights);

// Merges one round into `state` (version + 1) and gives each chunk of the update to `emit`, in unit order. Returns the
// digest of the new anchor. `inputs` are in bytewise order of site names.
uint64_t Merge(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
               FragmentState& state, const std::function<void(std::string chunk)>& emit);

}  // namespace causeway::server
