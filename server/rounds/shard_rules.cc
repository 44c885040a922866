#include "server/rounds/shard_rules.h"

#include <algorithm>

#include "server/rounds/run_facts.h"

namespace causeway::server {

using core::FragmentId;
using core::Member;
using core::Membership;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;
using core::Version;

namespace {

constexpr int64_t kNotToldMs = 200;  // until shard 0's update arrives: a moment, or as long as it is away

bool GoesOn(const SiteRecord& record, const Member& member) {
  return member.stay == record.stay && member.session == record.session;
}

}  // namespace

bool ShardRules::Knows(const JoinRequest& request) const {
  return facts_.InSession(request.site, request.session) && facts_.state.sites.at(request.site).stay == request.stay;
}

JoinDecision ShardRules::AskAgain() {
  return {.reason = "shard 0 has not told this shard of the site's stay yet", .retry_after_ms = kNotToldMs};
}

void ShardRules::Accepted(const SiteId& site, Actions& actions) const {
  // The site may have missed its entry. A site that has its place already knows it.
  if (core::IsActive(facts_.state.sites.at(site).state)) actions.push_back(Place(site));
  // Anything it sent before may be lost with this shard's last life.
  if (site == seeder_) AskForSeed(actions);
}

std::vector<Dropped> ShardRules::Ended(const Membership& membership) const {
  std::vector<Dropped> ended;
  for (const auto& [site, record] : facts_.state.sites) {
    if (record.state == SiteState::kGone) continue;
    const auto member = membership.sites.find(site);
    if (member == membership.sites.end()) {
      ended.push_back({.site = site, .reason = "shard 0 does not know it"});
    } else if (member->second.state == SiteState::kGone) {
      ended.push_back({site, member->second.ended, member->second.reason});
    } else if (!GoesOn(record, member->second)) {
      ended.push_back({.site = site, .reason = "joins anew"});
    }
  }
  return ended;
}

std::vector<SiteId> ShardRules::Unknown(const Membership& membership) const {
  std::vector<SiteId> unknown;
  for (const auto& [site, record] : facts_.state.sites) {
    const bool gone = record.state == SiteState::kGone;
    if (gone && !membership.sites.contains(site) && !WaitsForMerge(facts_.state, site)) unknown.push_back(site);
  }
  return unknown;
}

std::vector<SiteId> ShardRules::Released(const Membership& membership) const {
  std::vector<SiteId> released;
  for (const auto& [site, member] : membership.sites) {
    const auto record = facts_.state.sites.find(site);
    if (record != facts_.state.sites.end() && member.releases > record->second.releases) released.push_back(site);
  }
  return released;
}

std::vector<SiteId> ShardRules::Take(const Membership& membership) {
  core::RoundState& state = facts_.state;
  std::vector<SiteId> entered;
  for (const auto& [site, member] : membership.sites) {
    SiteRecord& record = state.sites[site];
    const bool was_active = core::IsActive(record.state);  // in this stay: otherwise it is gone by now
    record.session = member.session;
    record.stay = member.stay;
    record.state = member.state;
    record.ended = member.ended;
    record.reason = member.reason;
    if (member.releases > record.releases) {
      record.quarantined = false;
      record.refusals = 0;
    }
    record.releases = member.releases;
    record.last_merged.resize(facts_.num_fragments(), -1);
    if (member.state == SiteState::kGone) continue;
    if (!core::IsActive(record.state)) {
      record.first_versions.clear();
    } else if (!was_active) {
      record.first_versions = member.first_versions;
      record.first_versions.resize(facts_.num_fragments(), 0);
      for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
        // Rounds of this shard that closed meanwhile; and an earlier stay may have left its contribution in the open
        // round: one per round is enough.
        Version& first = record.first_versions[p];
        first = std::max(first, state.versions[p] + state.contributions[p].contains(site));
      }
      entered.push_back(site);
    }
  }
  state.started = membership.started;
  state.finished = membership.finished;
  state.stopped = membership.stopped;
  seeder_ = membership.seeder;
  return entered;
}

Enter ShardRules::Place(const SiteId& site) const {
  const SiteRecord& record = facts_.state.sites.at(site);
  return {.site = site,
          .entry = {.step = 0,  // shard 0 notifies it
                    .versions = facts_.state.versions,
                    .first_versions = record.first_versions,
                    .sites = facts_.ActiveSites(),
                    .stay = record.stay}};
}

bool ShardRules::IsNews(const SiteId& seeder, const std::vector<Dropped>& ended) const {
  return seeder != seeder_ || std::ranges::count(ended, seeder_, &Dropped::site) > 0;
}

void ShardRules::AskForSeed(Actions& actions) const {
  const auto seeder = facts_.state.sites.find(seeder_);
  if (facts_.seeded_here || seeder == facts_.state.sites.end() || !core::IsJoining(seeder->second.state)) return;
  actions.push_back(RequestSeed{seeder_});
}

ShardReport ShardRules::Report(const SiteId& stranded) const {
  ShardReport report{.seeded = facts_.seeded_here, .versions = facts_.state.versions};
  if (stranded.empty()) return report;
  report.stranded = stranded;
  report.stranded_stay = facts_.state.sites.at(stranded).stay;
  return report;
}

}  // namespace causeway::server
