// The state that a restarted site needs to continue its session, besides θ and the inner optimizer: plain values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/buffer_pool.h"
#include "core/ids.h"
#include "core/run_settings.h"
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

// A contribution that may or may not have been merged.
struct SentFacts {
  core::Version base = 0;
  TrainedAmount amount;   // the site's total when it was made
  TrainedAmount weight;   // since the last merged contribution: its weight
  bool admitted = false;  // the coordinator has admitted it: it will be merged
};

// The rules' knowledge of a fragment.
struct FragmentFacts {
  core::Version version = 0;    // W's version
  core::Version applied = 0;    // the version of W that θ has
  core::Version first = 0;      // base of the first contribution
  core::Version resolved = -1;  // base of the last contribution known to be merged
  bool merged = false;          // the update from `applied` to `version` contains our contribution
  std::vector<core::SiteId> sites;
  std::optional<SentFacts> sent;
  TrainedAmount merged_amount;
  int64_t run_tokens = 0;  // tokens of all sites, merged into it up to `version`
  core::Step delay = 0;    // τ of the round that θ applies next, where sites choose it
};

// The rules' knowledge of the site.
struct SiteFacts {
  std::string lineage;  // the coordinator's, to which the facts belong; the link may know a later one
  core::Step step = 0;
  TrainedAmount trained;
  std::vector<core::SiteId> sites;  // the sites that share the data
  std::vector<FragmentFacts> fragments;
};

using core::Chunks;

struct SiteCheckpoint {
  SiteFacts facts;
  core::SettingsChain settings;  // the run's settings, as the site knows them
  // Indexed by fragment.
  std::vector<replica::ReplicaArrays> arrays;
  std::vector<Chunks> chunks;           // chunks of a contribution not yet admitted; otherwise null
  std::shared_ptr<const void> storage;  // memory of the arrays, where the checkpoint was read from a file
};

// Calls `visit(name, array)` for each array of fragment p, with the name under which it is stored. `Arrays` is
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
