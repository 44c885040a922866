// The arithmetic of a round: contributions in, update and new anchors out, one pass over memory, tile by tile, on all
// cores.
//
//   contributions (encoded, in site order) ─► acc = Σ λ_m d_m ─► x = acc + β ē ─► encode ─► chunk of the update
//                                                                  ē ← x − g ◄── decode ◄──┘ │
//                                                          digest ◄── outer step on v and W ◄─┘
//
// Where both legs rotate, acc, x and ē stay in the rotated domain and g alone is rotated back: once a round instead of
// once for each site. Where only the up leg rotates, acc is rotated back before it is encoded.
//
// Figures of the round are measured on the way (server/merge/round_figures.h) and change nothing.
//
// That is `merge: average`. With `radial_directional` the weights are a tensor's own
// (server/merge/radial_directional.h) and each tensor is read twice ahead, shortly before it is merged; all else is the
// same.
//
//   update   |chunk 0          |chunk 1          |chunk 2 …
//   threads  |a    |b    |a    |c    |a    |b    | …          a few tiles at a time, in order
//   (server/merge/work_items.h) emitted  |────────────────►|                              a chunk that is whole, once
//   all before it have left
//
// A tile is a few units of one chunk of the update, small enough that all of it stays in cache. Chunks leave while
// later ones are merged; how far ahead that may be is bounded (core::ThreadTeam::window). Determinism (invariant 3):
// sites in bytewise order of name, blocks independent, arithmetic of core/outer_step.h; what is summed over blocks has
// an order (norms, figures) or is a sum modulo 2^64 (digest). So any number of threads gives the same bits.
//
// Contributions were checked when they came in, so a merge cannot fail half-way. Where x would leave the codecs' range
// (only absurd contributions add up to 2^100), it is clamped to the largest float inside, and what was beyond is lost.
// Source: docs/architecture.md. Thread-safe on different states and threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codecs/chunk.h"
#include "core/fragment_map.h"
#include "core/fragment_state.h"
#include "core/ids.h"
#include "core/outer_step.h"
#include "core/round_config.h"
#include "core/thread_team.h"
#include "server/merge/round_figures.h"

namespace causeway::server {

using core::FragmentState;

// A complete, valid contribution: chunks in unit order that cover the fragment.
struct MergeInput {
  core::SiteId site;
  float weight = 0;  // λ_m, normalised
  std::span<const codecs::ChunkView> chunks;
};

struct MergeSettings {
  core::OuterParameters outer;
  codecs::LegCodec down;
  float feedback_down = 0;
  bool zstd = false;                                 // chunks of the update are compressed where it pays
  core::MergeRule rule = core::MergeRule::kAverage;  // a replay needs the one that its round was merged with
  core::ThreadTeam* threads = nullptr;               // null: the caller's thread alone
};

struct MergeResult {
  uint64_t digest = 0;          // of the new anchor
  StepProducts products;        // of the step that it took
  std::vector<double> cosines;  // of each input to their mean, in their order; not a number where one of both is zero
};

// λ_m = float(w_m / Σ w), computed in double. Needs Σ w > 0.
std::vector<float> NormalizedWeights(std::span<const double> weights);

// Merges one round into `state` (version + 1) and gives each chunk of the update to `emit`, in unit order: one call at
// a time, each seeing what those before it did, but from whichever of the threads made the chunk that was missing. It
// must not touch `state`; while it runs, the other threads merge at most core::ThreadTeam::window() items further.
// `inputs` are in bytewise order of site names, and state.residual is there if
// feedback_down is not 0: the caller's bug otherwise.
MergeResult Merge(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
                  FragmentState& state, const std::function<void(std::string chunk)>& emit);

}  // namespace causeway::server
