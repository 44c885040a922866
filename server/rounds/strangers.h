// Sites that know more of the run than this state holds: the state belongs to another directory, is an older copy, or
// has lost its end.
//
//   Join ── Shown ─► FindDoubt ─► nothing: the rules decide
//                        └──────► Strangers: the site must wait with its parameters and retry
//
// An epoch is term · 2³² + place · 2²⁴ + what rises at each start; the term rises with each promotion of a standby, and
// each coordinator of the run has its own place.
//
// A site that says such a thing waits alone. Only where it is proven that this state has lost history does no round
// close until an operator resumes the run. A waiting site retries every few seconds; one that has not for a while is
// dropped from the list. Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/ids.h"

namespace causeway::server {

enum class Doubt {
  kUnknownLineage,   // the site's parameters belong to a state that is neither this one nor its predecessor
  kHistoryLost,      // the site has seen more of this lineage than is stored here
  kTwoCoordinators,  // the site has talked to another process of the same lineage and epoch
  kUnprovenClaim,    // the site says that it has seen more of this lineage, and shows no proof
};
std::string_view DoubtName(Doubt doubt);  // "unknown_lineage", …: the name of its event and its alarm

// The identity of this coordinator.
struct CoordinatorIdentity {
  std::string lineage;
  std::vector<std::string> former_lineages;
  std::string continues;  // the lineage whose versions equal this one's bit by bit; empty: none
  uint64_t epoch = 0;
  uint64_t life = 0;  // drawn at random at its start
};

// How much of the run a caller has seen; fields that it does not give are empty or 0.
struct Shown {
  std::string lineage;
  uint64_t epoch = 0;
  uint64_t life = 0;
};

// A site's or the coordinator's record of the same fragments: versions, and the base of the site's last admitted
// contribution (−1: none). Empty lists say nothing.
struct History {
  std::vector<core::Version> versions;
  std::vector<core::Version> admitted;
};

struct DoubtFound {
  Doubt doubt = Doubt::kUnknownLineage;
  std::string text;       // both sides' values, and how to resolve it
  bool of_epoch = false;  // a later life of this lineage was seen, so that this state is an older copy
  bool deposed = false;   // that of a standby that was promoted
};

// A site's claim: the run is of another lineage; or this lineage has reached an epoch, in that life, or a version, or
// has admitted a contribution of the caller to that base.
struct Claim {
  enum class Kind { kLineage, kEpoch, kVersion, kAdmission };
  Kind kind = Kind::kEpoch;
  core::FragmentId fragment = 0;
  core::Version version = 0;
};
using IsProven = absl::FunctionRef<bool(const Claim&)>;  // asked only about claims of more than is known here

std::optional<DoubtFound> FindDoubt(const CoordinatorIdentity& own, const Shown& shown, IsProven is_proven);
// Compares two histories of the same lineage, in the shard's fragments; a proven claim is found first.
std::optional<DoubtFound> FindDoubt(const History& own, const History& shown, const core::Shard& shard,
                                    IsProven is_proven);

class Strangers {
 public:
  static constexpr int64_t kAskAgainMs = 5'000;

  struct Stranger {
    core::SiteId site;
    DoubtFound found;
  };

  // True if this is new: the site was not present with this doubt, and fewer than core::kMaxSites others are.
  bool Note(const core::SiteId& site, const DoubtFound& found, int64_t now_ms);
  void Forget(const core::SiteId& site) { strangers_.erase(site); }  // the site is no longer in doubt

  std::vector<Stranger> Present(int64_t now_ms) const;  // in bytewise order of site
  // Whether as many sites have history that is lost, all of which may have been this state's end.
  bool MissesAnEnd(int sites) const;
  // Why this coordinator must end: a standby leads. Empty: none does, as far as a site has proven.
  std::string WhyDeposed() const;

 private:
  struct Seen {
    DoubtFound found;
    int64_t seen_ms = 0;
  };
  static bool IsPresent(const Seen& seen, int64_t now_ms) { return now_ms - seen.seen_ms < 4 * kAskAgainMs; }

  std::map<core::SiteId, Seen> strangers_;
};

}  // namespace causeway::server
