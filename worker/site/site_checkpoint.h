// What a site's process must find again to go on with its session, beside θ and the inner optimizer: plain values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/bytes.h"
#include "core/ids.h"
#include "core/schedule.h"
#include "replica/replica.h"

namespace causeway::worker {

// How much a site has trained.
struct TrainedAmount {
  int64_t tokens = 0;
  int64_t steps = 0;

  friend TrainedAmount operator-(const TrainedAmount& a, const TrainedAmount& b) {
    return {a.tokens - b.tokens, a.steps - b.steps};
  }
};

// A contribution of which it is not known whether it was merged.
struct SentFacts {
  core::Version base = 0;
  TrainedAmount amount;   // of the site when it was made
  TrainedAmount weight;   // since the last one that was merged: what it counts
  bool admitted = false;  // by the coordinator: it will be merged
};

// What the rules know of a fragment.
struct FragmentFacts {
  core::Version version = 0;    // of W
  core::Version applied = 0;    // of W, as far as θ has it
  core::Version first = 0;      // base of the first contribution
  core::Version resolved = -1;  // base of the last contribution that is known to be merged
  bool merged = false;          // the update between `applied` and `version` has our contribution
  std::vector<core::SiteId> sites;
  std::optional<SentFacts> sent;
  TrainedAmount merged_amount;
  core::Step delay = 0;  // τ of the round that θ applies next, where sites choose it
};

// What the rules know of the site.
struct SiteFacts {
  std::string lineage;  // of the coordinator's state that they are of; the link may know of a later one
  core::Step step = 0;
  TrainedAmount trained;
  std::vector<core::SiteId> sites;  // that share the data
  std::vector<FragmentFacts> fragments;
};

using core::Chunks;

struct SiteCheckpoint {
  SiteFacts facts;
  // Of each fragment.
  std::vector<replica::ReplicaArrays> arrays;
  std::vector<Chunks> chunks;           // of a contribution that is not admitted; otherwise null
  std::shared_ptr<const void> storage;  // of the arrays, where the checkpoint was read from a file
};

// Calls `visit(name, array)` for each array of fragment p, with the name that it is stored under. `Arrays` is
// replica::ReplicaArrays, or const.
template <typename Arrays, typename Visit>
void VisitArrays(size_t p, Arrays& arrays, Visit visit) {
  visit(absl::StrCat(p, ".anchor"), arrays.anchor);
  visit(absl::StrCat(p, ".momentum"), arrays.momentum);
  visit(absl::StrCat(p, ".step"), arrays.step);
  visit(absl::StrCat(p, ".residual"), arrays.residual);
  visit(absl::StrCat(p, ".next_residual"), arrays.next_residual);
}

}  // namespace causeway::worker
