#include "server/rounds/gone_names.h"

#include <algorithm>
#include <utility>

#include "core/limits.h"

namespace causeway::server {

using core::SiteId;

bool WaitsForMerge(const core::RoundState& state, const SiteId& site) {
  return std::ranges::any_of(state.contributions, [&](const auto& open) { return open.contains(site); });
}

bool GoneNames::IsFull(const core::RoundState& state) {
  return state.sites.size() >= static_cast<size_t>(core::kMaxSites);
}

std::optional<SiteId> GoneNames::Longest(const core::RoundState& state) const {
  std::optional<SiteId> longest;
  const auto rank = [&](const SiteId& site) {
    return std::make_pair(IsLost(state.sites.at(site)), since_ms_.at(site));
  };
  for (const auto& [site, since_ms] : since_ms_) {
    if (!WaitsForMerge(state, site) && (!longest || rank(site) < rank(*longest))) longest = site;
  }
  return longest;
}

SiteId GoneNames::GiveUp(core::RoundState& state, const SiteId& newcomer) {
  const SiteId given_up = *Longest(state);
  int64_t stay = 0;
  for (const auto& [site, record] : state.sites) stay = std::max(stay, record.stay);
  state.sites.erase(given_up);
  since_ms_.erase(given_up);
  state.sites[newcomer].stay = stay;
  return given_up;
}

}  // namespace causeway::server
