// Names of sites that are gone, and the choice of the one to give up when a run has reached its limit of sites: the one
// that has been gone for longest. A missed site (IsLost) is given up last; a site whose contribution waits to be merged
// is never given up. Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "core/ids.h"
#include "core/membership.h"

namespace causeway::server {

// Whether the site is missed: it is gone because its lease ended.
inline bool IsLost(const core::SiteRecord& record) {
  return record.state == core::SiteState::kGone && record.ended == core::Ended::kExpired;
}

// Whether a contribution of the site is in an open round.
bool WaitsForMerge(const core::RoundState& state, const core::SiteId& site);

class GoneNames {
 public:
  static bool IsFull(const core::RoundState& state);  // the run has core::kMaxSites names
  // Whether a site that claims to have had a place may be right.
  static bool MayHaveForgotten(const core::RoundState& state, const core::SiteId& site) {
    return IsFull(state) && !state.sites.contains(site);
  }

  void Note(const core::SiteId& site, int64_t now_ms) { since_ms_.try_emplace(site, now_ms); }
  void IsBack(const core::SiteId& site) { since_ms_.erase(site); }

  bool HasRoom(const core::RoundState& state) const { return !IsFull(state) || Longest(state); }
  // Gives a name up for a newcomer's; the newcomer's stays begin above all earlier numbers, so that a name that comes
  // back cannot be in an earlier stay. Needs HasRoom, and a newcomer that is not among the sites.
  core::SiteId GiveUp(core::RoundState& state, const core::SiteId& newcomer);

 private:
  std::optional<core::SiteId> Longest(const core::RoundState& state) const;

  std::map<core::SiteId, int64_t> since_ms_;  // since when each name has been gone, as far as known here
};

}  // namespace causeway::server
