#include "server/rounds/run_facts.h"

#include <algorithm>
#include <utility>

#include "core/limits.h"

namespace causeway::server {

using core::SiteId;
using core::SiteState;

RunFacts::RunFacts(const RoundSettings& its_settings, core::RoundState its_state, int64_t its_now_ms)
    : settings(its_settings),
      schedule(its_settings.sync.Schedule()),
      state(std::move(its_state)),
      now_ms(its_now_ms),
      seeded_here(state.seeded),
      refused(num_fragments()),
      first_(its_settings) {
  state.versions.resize(num_fragments());
  state.contributions.resize(num_fragments());
  state.tokens.resize(num_fragments());
  for (auto& [site, record] : state.sites) {
    record.last_merged.resize(num_fragments(), -1);
    // A journal without a seed does not know how many fragments there are, so that nothing has checked its lists.
    if (core::IsActive(record.state)) record.first_versions.resize(num_fragments(), 0);
  }
}

const RoundSettings& RunFacts::Of(core::FragmentId fragment) const {
  const auto holds = [&](const Change& change) { return change.versions[fragment] <= state.versions[fragment]; };
  const auto last = std::find_if(changes_.rbegin(), changes_.rend(), holds);
  return last == changes_.rend() ? first_ : last->settings;
}

int64_t RunFacts::lease_ms() const {
  int64_t longest_ms = settings.membership.lease_ms;
  for (core::FragmentId p = 0; p < num_fragments() && !changes_.empty(); ++p) {
    longest_ms = std::max(longest_ms, Of(p).membership.lease_ms);
  }
  return longest_ms;
}

void RunFacts::TakeOver(const SettingsChanged& changed) {
  const auto passed = [this](const Change& one) {  // by every fragment: those before it hold no more
    return std::ranges::equal(one.versions, state.versions, std::ranges::less_equal());
  };
  const auto last = std::find_if(changes_.rbegin(), changes_.rend(), passed);
  if (last != changes_.rend()) changes_.erase(changes_.begin(), std::prev(last.base()));
  settings.membership = changed.membership;
  settings.values = changed.values;
  settings.max_tokens_per_step = changed.max_tokens_per_step;
  settings.steps = changed.steps;
  settings.run_tokens = changed.run_tokens;
  changes_.push_back({changed.versions, settings});
}

bool RunFacts::InSession(const SiteId& site, const core::SessionId& session) const {
  const auto found = state.sites.find(site);
  return found != state.sites.end() && found->second.state != SiteState::kGone && found->second.session == session;
}

bool RunFacts::IsCompleting(const SiteId& site) const {
  const auto link = links.find(site);
  return link != links.end() && link->second.completing;
}

bool RunFacts::ClosesItsLast(const SiteId& site, core::FragmentId fragment) const {
  if (!IsCompleting(site) || links.at(site).completed_at.empty()) return false;
  // In quorum mode what it has sent may arrive in the round after that.
  return state.versions[fragment] <= links.at(site).completed_at[fragment] + (synchronous() ? 0 : 1);
}

bool RunFacts::AnyJoining() const {
  return std::ranges::any_of(state.sites, [](const auto& site) { return core::IsJoining(site.second.state); });
}

int RunFacts::NumActive() const {
  return static_cast<int>(std::ranges::count_if(state.sites, [](const auto& site) { return Counts(site.second); }));
}

std::vector<SiteId> RunFacts::ActiveSites() const {
  std::vector<SiteId> sites;
  for (const auto& [site, record] : state.sites) {
    if (core::IsActive(record.state)) sites.push_back(site);
  }
  return sites;
}

bool RunFacts::Ending(core::FragmentId fragment) const {
  if (state.finished || state.stopped) return true;
  return std::ranges::any_of(state.contributions[fragment], [this, fragment](const auto& contributor) {
    return ClosesItsLast(contributor.first, fragment) ||
           state.sites.at(contributor.first).state == SiteState::kDraining;
  });
}

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
