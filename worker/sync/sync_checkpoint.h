// What a site's process must find again to go on with its session, beside θ and the inner optimizer: a plain value.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/codec_id.h"
#include "core/ids.h"
#include "core/outer_step.h"

namespace causeway::worker {

// How much a site has trained.
struct TrainedAmount {
  int64_t tokens = 0;
  int64_t steps = 0;
};

// A contribution that was sent, and of which it is not known whether it was merged.
struct UnresolvedContribution {
  core::Version base = 0;
  TrainedAmount amount;                                    // of the site when it was made
  TrainedAmount weight;                                    // since the last one that was merged: what it counts
  std::shared_ptr<const std::vector<std::string>> chunks;  // until it is admitted
  bool admitted = false;
};

// One fragment's arrays, wherever they lie: padded layout, residuals in the codec's domain.
struct FragmentArrays {
  std::span<const float> anchor;         // W
  std::span<const float> momentum;       // v
  std::span<const float> staging;        // g of the last update
  std::span<const float> residual;       // e; empty without feedback
  std::span<const float> next_residual;  // e as it will be if the unresolved contribution is merged
  core::OuterParameters last_outer;
  bool pending = false;             // next_residual counts
  std::optional<core::CodecId> up;  // of contributions to this version; none: as the config says
};

struct FragmentCheckpoint {
  core::Version version = 0;
  core::Version applied = 0;
  core::Version first = 0;
  core::Version resolved = -1;
  bool merged = false;  // the update between `applied` and `version` has our contribution
  std::vector<core::SiteId> sites;
  std::optional<UnresolvedContribution> sent;
  TrainedAmount merged_amount;
  core::Step delay = 0;  // τ of the round that θ applies next, where sites choose it
  FragmentArrays arrays;
};

struct SyncCheckpoint {
  core::Step step = 0;
  TrainedAmount trained;
  std::vector<core::SiteId> sites;  // that share the data
  std::vector<FragmentCheckpoint> fragments;
  std::shared_ptr<const void> storage;  // of the arrays, where the checkpoint was read from a file
};

}  // namespace causeway::worker
