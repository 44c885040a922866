// Which state a coordinator that has lost its own takes from the sites: of each fragment the newest version of which
// two of them hold W and v with equal digests.
//
//   Show, Leave ─► Choose ─► who holds what was chosen ─► what one of them sends is compared with what all showed
//
// No single site is believed, unless an operator names it: what one alone holds, or shows otherwise than two others, is
// not taken, and said. Where sites stand at versions that differ by one, the second newest is what two hold; of a run
// whose schedule was kept it is consistent over the fragments. Pure; one owner at a time.
// Source: docs/decisions/0020-what-sites-know.md.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/shard.h"

namespace causeway::server {

struct HeldVersion {
  core::Version version = 0;
  uint64_t anchor_digest = 0;    // of W
  uint64_t momentum_digest = 0;  // of v

  friend auto operator<=>(const HeldVersion&, const HeldVersion&) = default;
};

// All that a site shows.
struct Holdings {
  std::string lineage;
  std::string model;  // its manifest, serialized: sites of one run have equal ones
  std::map<core::FragmentId, HeldVersion> fragments;
};

struct RebuildChoice {
  struct Fragment {
    HeldVersion held;
    std::vector<core::SiteId> witnesses;  // in bytewise order
  };
  std::string lineage;
  std::string model;
  std::map<core::FragmentId, Fragment> fragments;  // all of the shard's
  std::vector<std::string> dissent;                // a sentence for each site and what of it was not taken
};

class RebuildRules {
 public:
  // Sites ask again every 5 s: in this time all that run have come.
  static constexpr int64_t kSettleMs = 12'000;

  // `accept`: the one site that is believed; empty: two are needed.
  RebuildRules(int num_fragments, const core::Shard& shard, core::SiteId accept)
      : num_fragments_(num_fragments), shard_(shard), accept_(std::move(accept)) {}

  void Show(const core::SiteId& site, Holdings holdings, int64_t now_ms);
  void Leave(const core::SiteId& site) { shown_.erase(site); }
  // The site sent other values than it showed: nothing of it counts any more.
  void Distrust(const core::SiteId& site);
  bool Holds(const core::SiteId& site, core::FragmentId fragment, const HeldVersion& held) const;  // as it shows now
  bool Distrusts(const core::SiteId& site) const { return distrusted_.contains(site); }

  // UNAVAILABLE says what is waited for.
  absl::StatusOr<RebuildChoice> Choose(int64_t now_ms) const;

 private:
  bool Counts(const Holdings& holdings, const RebuildChoice& choice) const {
    return holdings.lineage == choice.lineage && holdings.model == choice.model;
  }
  absl::StatusOr<RebuildChoice> ChooseRun() const;
  absl::StatusOr<RebuildChoice::Fragment> ChooseFragment(core::FragmentId fragment, const RebuildChoice& run) const;
  void NoteDissent(RebuildChoice& choice) const;

  const int num_fragments_;
  const core::Shard shard_;
  const core::SiteId accept_;
  std::map<core::SiteId, Holdings> shown_;
  std::set<core::SiteId> distrusted_;
  int64_t newest_ms_ = 0;  // when a site came that had not shown anything before
};

}  // namespace causeway::server
