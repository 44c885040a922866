// Chooses the state that a coordinator takes from the sites when it has lost its own: each fragment's version that most
// sites hold, and of several such the newest. At least two must hold its W and v with equal digests.
//
//   Show, Leave ─► Choose ─► the holders of the choice ─► what one of them sends is compared with what all showed
//
// No single site is trusted unless an operator names it: state that only one site holds, or that differs from two
// others, is not taken, and the difference is reported. A site that holds the next version agrees with what it
// remembers of the one before, so that two sites suffice, of which one has taken the last update and the other has not.
// Two sites that report a round that never was are outvoted by three; where false sites are as many as honest ones,
// nothing is safe. Nor is it a question of numbers alone: where two agree on one state and two on another that is not
// its predecessor, an operator has to name a site. Where sites stand at versions that differ by one, two hold the
// second newest; if the run kept its schedule, that is consistent over the fragments.
//
// The run's settings are chained by digests: a site that holds a revision holds all before it. The rules take the
// longest chain whose newest revision two sites hold, or that of the one site that is trusted.
//
// A coordinator that has lost only the end of its state holds the rest itself: it is one of two that agree, and its own
// version of a fragment stays where no site shows a newer one.
// Pure; one owner at a time. Source: docs/decisions/0020-what-sites-know.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fragment_state.h"
#include "core/ids.h"
#include "core/run_settings.h"

namespace causeway::server {

// Everything that a site shows.
struct Holdings {
  std::string lineage;
  std::string model;  // its manifest, serialized: sites of one run have equal ones
  std::map<core::FragmentId, core::HeldVersion> fragments;
  std::map<core::FragmentId, core::HeldVersion> before;  // the version before the last update, where the site knows it
  std::map<core::FragmentId, int64_t> run_tokens;        // tokens that the run has merged into each
  core::SettingsChain settings;  // the run's settings, as far as the site knows them for certain
};

// The state that the coordinator itself has, and the sites that were in the run then.
struct OwnHoldings {
  Holdings held;
  std::set<core::SiteId> sites;
};

struct RebuildChoice {
  struct Fragment {
    core::HeldVersion held;
    std::vector<core::SiteId> witnesses;  // in bytewise order; empty where the coordinator's own version stays
    int64_t run_tokens = 0;               // the smallest number that a witness reports
  };
  std::string lineage;
  std::string model;
  std::map<core::FragmentId, Fragment> fragments;  // all fragments of the shard
  std::vector<std::string> dissent;                // a sentence for each site about the state not taken from it
  core::SettingsChain settings;                    // up to the newest revision that two hold
};

class RebuildRules {
 public:
  // Sites retry every 5 s: within this time all running sites have come.
  static constexpr int64_t kSettleMs = 12'000;
  // The upper limit of that time, so that sites that come under ever new names hold nothing up.
  static constexpr int64_t kMostSettleMs = 30'000;

  // `accept`: the one site to trust; empty: two must agree.
  RebuildRules(int num_fragments, const core::Shard& shard, core::SiteId accept,
               std::optional<OwnHoldings> own = std::nullopt)
      : num_fragments_(num_fragments), shard_(shard), accept_(std::move(accept)), own_(std::move(own)) {}

  void Show(const core::SiteId& site, Holdings holdings, int64_t now_ms);
  void Leave(const core::SiteId& site) { shown_.erase(site); }
  // The site sent values other than it showed: nothing from it counts any more.
  void Distrust(const core::SiteId& site);
  bool Holds(const core::SiteId& site, core::FragmentId fragment,
             const core::HeldVersion& held) const;  // according to what it shows now
  bool Distrusts(const core::SiteId& site) const { return distrusted_.contains(site); }

  // UNAVAILABLE says what is still missing.
  absl::StatusOr<RebuildChoice> Choose(int64_t now_ms) const;
  bool IsSettled(int64_t now_ms) const;  // whatever is missing will not come by itself

 private:
  bool Counts(const Holdings& holdings, const RebuildChoice& choice) const {
    return holdings.lineage == choice.lineage && holdings.model == choice.model;
  }
  absl::StatusOr<RebuildChoice> ChooseRun() const;
  int64_t LeastTokens(const std::vector<core::SiteId>& sites, core::FragmentId fragment) const;
  absl::StatusOr<RebuildChoice::Fragment> ChooseFragment(core::FragmentId fragment, const RebuildChoice& run) const;
  core::SettingsChain ChooseSettings(const RebuildChoice& run) const;
  void NoteDissent(RebuildChoice& choice) const;

  const int num_fragments_;
  const core::Shard shard_;
  const core::SiteId accept_;
  const std::optional<OwnHoldings> own_;
  std::map<core::SiteId, Holdings> shown_;
  std::set<core::SiteId> distrusted_;
  std::set<core::SiteId> came_;  // every site that has ever shown its holdings
  int64_t first_ms_ = 0;         // when the first of them came
  int64_t newest_ms_ = 0;        // when the newest of them came
};

}  // namespace causeway::server
