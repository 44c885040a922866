// Names of sites that are gone, and which of them is given up when a run has as many sites as it may: the one that has
// been gone for longest. One that is missed (IsLost) is given up last; one whose contribution waits to be merged, not
// at all. Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "core/ids.h"
#include "core/membership.h"

namespace causeway::server {

// One begins the reason of a lease that ended. Reasons are durable, and other shards are told of them: they are the
// mark, too.
inline constexpr char kNotHeardOf[] = "not heard of";
inline constexpr char kDoesNotHear[] = "does not hear the coordinator";

// Its lease ended, and it is missed: no operator has told it to leave, before or since.
bool IsLost(const core::SiteRecord& record);

// A contribution of the site is in an open round.
bool WaitsForMerge(const core::RoundState& state, const core::SiteId& site);

class GoneNames {
 public:
  static bool IsFull(const core::RoundState& state);  // core::kMaxSites names
  // A site that says that it had a place may have had it.
  static bool MayHaveForgotten(const core::RoundState& state, const core::SiteId& site) {
    return IsFull(state) && !state.sites.contains(site);
  }

  void Note(const core::SiteId& site, int64_t now_ms) { since_ms_.try_emplace(site, now_ms); }
  void IsBack(const core::SiteId& site) { since_ms_.erase(site); }

  bool HasRoom(const core::RoundState& state) const { return !IsFull(state) || Longest(state); }
  // Gives a name up for a newcomer's, of which the stays begin above all that there have been: a name that comes back
  // is in no stay of before. HasRoom is true, and the newcomer is not among the sites.
  core::SiteId GiveUp(core::RoundState& state, const core::SiteId& newcomer);

 private:
  std::optional<core::SiteId> Longest(const core::RoundState& state) const;

  std::map<core::SiteId, int64_t> since_ms_;  // as far as this process knows
};

}  // namespace causeway::server
