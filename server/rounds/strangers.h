// Sites that show more than this state knows of: then it is another directory's, an older copy, or has lost its end.
//
//   Join ── Shown ─► FindDoubt ─► nothing: the rules decide
//                        └──────► Strangers: the site is to wait with its parameters and ask again; meanwhile no site
//                                 has to supply initial parameters (unknown lineage), or no round closes (history lost)
//
// A site that waits asks again every few seconds; one that has not for a while is not among them any more. An operator
// who resumes the run has decided: what is present then holds nothing up, and goes on waiting. Pure; one owner at a
// time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/shard.h"

namespace causeway::server {

enum class Doubt {
  kUnknownLineage,   // the site's parameters are of a state that this one neither is nor goes on from
  kHistoryLost,      // the site has seen more of this lineage than is stored here
  kTwoCoordinators,  // the site has spoken with another process of the same lineage and epoch
};
std::string_view DoubtName(Doubt doubt);  // "unknown_lineage", …: of its event and its alarm

// Who this coordinator is.
struct CoordinatorIdentity {
  std::string lineage;
  std::vector<std::string> former_lineages;
  std::string continues;  // the one of them whose versions are bit by bit this one's; empty: none
  uint64_t epoch = 0;
  uint64_t life = 0;  // drawn at random at its start
};

// How much a caller has seen of the run; what it does not say is empty or 0.
struct Shown {
  std::string lineage;
  uint64_t epoch = 0;
  uint64_t life = 0;
};

// All that a site and the coordinator know of the same fragments: versions, and the base of the site's last
// contribution that was admitted (−1: none). Empty lists say nothing.
struct History {
  std::vector<core::Version> versions;
  std::vector<core::Version> admitted;
};

struct DoubtFound {
  Doubt doubt = Doubt::kUnknownLineage;
  std::string text;  // both sides of it, and what ends it
};

std::optional<DoubtFound> FindDoubt(const CoordinatorIdentity& own, const Shown& shown);
// Both of the same lineage, in the shard's fragments.
std::optional<DoubtFound> FindDoubt(const History& own, const History& shown, const core::Shard& shard);

class Strangers {
 public:
  static constexpr int64_t kAskAgainMs = 5'000;

  struct Stranger {
    core::SiteId site;
    DoubtFound found;
  };

  // True if it is news: the site was not present with this doubt, and fewer than core::kMaxSites others are.
  bool Note(const core::SiteId& site, const DoubtFound& found, int64_t now_ms);
  void Forget(const core::SiteId& site) { strangers_.erase(site); }  // it is in doubt no more

  std::vector<Stranger> Present(int64_t now_ms) const;  // in bytewise order of site
  bool HoldSeed(int64_t now_ms) const;                  // initial parameters are not to take the place of theirs
  bool Settle();                                        // an operator has decided; false: nothing was held up

 private:
  struct Seen {
    DoubtFound found;
    int64_t seen_ms = 0;
  };
  static bool IsPresent(const Seen& seen, int64_t now_ms) { return now_ms - seen.seen_ms < 4 * kAskAgainMs; }

  std::map<core::SiteId, Seen> strangers_;
  bool settled_ = false;
};

}  // namespace causeway::server
