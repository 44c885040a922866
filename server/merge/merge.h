// The arithmetic of a round: contributions in, update and new anchors out, one pass over memory, tile by tile, on all
// cores.
//
//   contributions (encoded, in site order) ─► acc = Σ λ_m f_m d_m ─► x = acc + β ē ─► encode ─► chunk of the update
//                                                                  ē ← x − g ◄── decode ◄──┘ │
//                                                          digest ◄── outer step on v and W ◄─┘
//
// Where both legs rotate, acc, x and ē stay in the rotated domain and only g is rotated back: once a round instead of
// once for each site. Where only the up leg rotates, acc is rotated back before it is encoded.
//
// Figures of the round are measured on the way (server/merge/round_figures.h) and change nothing.
//
// That is `merge: average`. With `radial_directional` each tensor has its own weights
// (server/merge/radial_directional.h) and is read twice beforehand, shortly before it is merged; everything else is the
// same.
//
//   update   |chunk 0          |chunk 1          |chunk 2 …
//   threads  |a    |b    |a    |c    |a    |b    | …          a few tiles at a time, in order (work_items.h)
//   emitted  |────────────────►|                              a chunk that is whole, once all before it have left
//
// A tile is a few units of one chunk of the update, small enough that all of it stays in cache. Chunks leave while
// later ones are merged; the distance is bounded (core::ThreadTeam::window). Determinism (invariant 3): sites in
// bytewise order of name, blocks independent, arithmetic of core/outer_step.h; sums over blocks have a fixed order
// (norms, figures) or are taken modulo 2^64 (digest). So any number of threads gives the same bits.
//
// Contributions were checked when they arrived, so a merge cannot fail half-way. Where x would leave the codecs' range
// (only absurd contributions add up to 2^100), it is clamped to the largest float inside, and the excess is lost.
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
#include "core/run_config.h"
#include "core/thread_team.h"
#include "server/merge/round_figures.h"

namespace causeway::server {

using core::FragmentState;

// A complete, valid contribution: chunks in unit order that cover the fragment.
struct MergeInput {
  core::SiteId site;
  float weight = 0;  // λ_m, normalised
  std::span<const codecs::ChunkView> chunks;
  float factor = 1;  // f_m, by which d_m is scaled first
};

struct MergeSettings {
  core::OuterParameters outer;
  codecs::LegCodec down;
  float feedback_down = 0;
  bool zstd = false;                                 // compresses chunks of the update where it pays
  core::MergeRule rule = core::MergeRule::kAverage;  // a replay needs the rule of its original merge
  core::ThreadTeam* threads = nullptr;               // null: the caller's thread alone
};

struct MergeResult {
  uint64_t digest = 0;          // of the new anchor
  StepProducts products;        // of the step taken
  std::vector<double> cosines;  // between each input and the mean, in input order; NaN where either is zero
};

// λ_m = float(w_m / Σ w), computed in double. Needs Σ w > 0.
std::vector<float> NormalizedWeights(std::span<const double> weights);

// Merges one round into `state` (version + 1) and passes each chunk of the update to `emit`, in unit order: one call at
// a time, each seeing the effects of earlier ones, but on the thread that made the missing chunk. While it runs,
// the other threads merge at most core::ThreadTeam::window() items further.
// REQUIRES: `emit` does not touch `state`; `inputs` are in bytewise order of site names; state.residual exists if
// feedback_down is not 0.
MergeResult Merge(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
                  FragmentState& state, const std::function<void(std::string chunk)>& emit);

}  // namespace causeway::server
