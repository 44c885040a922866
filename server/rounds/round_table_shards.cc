// The exchange among the shards of a run: shard 0 decides which sites are in, the others follow.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/rounds/round_table.h"

namespace causeway::server {
namespace {

constexpr int64_t kNotToldMs = 200;  // until shard 0's update arrives: a moment, or as long as it is away

}  // namespace

using core::FragmentId;
using core::Member;
using core::Membership;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;
using core::Version;

// ---- Shard 0 ----

Membership RoundTable::membership() const {
  Membership membership{.started = state_.started,
                        .finished = state_.finished,
                        .paused = state_.paused,
                        .stopped = state_.stopped,
                        .seeder = state_.seeded ? "" : seeder_,
                        .sites = {}};
  for (const auto& [site, record] : state_.sites) {
    membership.sites[site] = {.session = record.session,
                              .stay = record.stay,
                              .state = record.state,
                              .reason = record.reason,
                              .first_versions = record.first_versions,
                              .releases = record.releases};
  }
  return membership;
}

bool RoundTable::HeardOfAllShards() const { return std::ranges::count(heard_of_shard_, false) == 0; }

std::string RoundTable::MissingShards() const {
  for (int i = 0; i < rules_.shard.count; ++i) {
    if (!heard_of_shard_[i]) return absl::StrCat("waiting for shard ", i);
    if (i > 0 && !seeded_shard_[i]) return absl::StrCat("waiting for the initial parameters of shard ", i);
  }
  return "";
}

Actions RoundTable::Seeded() {
  seeded_here_ = true;
  return UpdateSeeded();
}

void RoundTable::BeginAnotherModel() {
  CHECK(!state_.started);
  seeded_here_ = state_.seeded = false;
  seeded_shard_.assign(rules_.shard.count, false);
}

Actions RoundTable::UpdateSeeded() {
  bool all = seeded_here_;
  for (int i = 1; i < rules_.shard.count && !follows(); ++i) all &= seeded_shard_[i];
  state_.seeded |= all;
  return state_.seeded && !follows() ? EnterReady() : Actions();
}

// A restarted shard may have less than it reported before the crash, so its latest report counts.
Actions RoundTable::HeardOfShard(int shard, const ShardReport& report) {
  CHECK(rules_.shard.leads() && shard > 0 && shard < rules_.shard.count);
  heard_of_shard_[shard] = true;
  seeded_shard_[shard] = report.seeded;
  for (FragmentId p = 0; p < num_fragments() && p < static_cast<FragmentId>(report.versions.size()); ++p) {
    if (rules_.shard.OwnerOf(p) == shard) state_.versions[p] = report.versions[p];
  }
  Actions actions = UpdateSeeded();
  const auto stranded = state_.sites.find(report.stranded);
  if (stranded != state_.sites.end() && core::IsActive(stranded->second.state) &&
      stranded->second.stay == report.stranded_stay) {
    Drop(report.stranded, absl::StrCat("no site is left to fill an open round of shard ", shard, "; joins anew"),
         actions);
  }
  return actions;
}

// ---- The others ----

ShardReport RoundTable::report() const {
  ShardReport report{.seeded = seeded_here_, .versions = state_.versions};
  if (!StrandedFragment()) return report;
  report.stranded = Stranded();
  report.stranded_stay = state_.sites.at(report.stranded).stay;
  return report;
}

// The site takes the place that shard 0 assigned; it has no part in rounds decided here meanwhile.
Enter RoundTable::FollowEntry(const SiteId& site) const {
  const SiteRecord& record = state_.sites.at(site);
  return {.site = site,
          .entry = {.step = 0,  // shard 0 notifies it
                    .versions = state_.versions,
                    .first_versions = record.first_versions,
                    .sites = ActiveSites(),
                    .stay = record.stay}};
}

Actions RoundTable::Follow(const Membership& membership, int64_t now_ms) {
  CHECK(follows());
  SetNow(now_ms);
  Actions actions;
  const auto goes_on = [](const SiteRecord& record, const Member& member) {
    return member.state != SiteState::kGone && member.stay == record.stay && member.session == record.session;
  };
  std::vector<std::pair<SiteId, std::string>> ended;
  for (const auto& [site, record] : state_.sites) {
    if (record.state == SiteState::kGone) continue;
    const auto member = membership.sites.find(site);
    if (member == membership.sites.end()) {
      ended.emplace_back(site, "shard 0 does not know it");
    } else if (!goes_on(record, member->second)) {
      ended.emplace_back(site, member->second.state == SiteState::kGone ? member->second.reason : "joins anew");
    }
  }
  // Shard 0 requests its own part; every other shard that learns of the seeder requests its own.
  const bool other_seeder =
      membership.seeder != seeder_ || std::ranges::count(ended, seeder_, [](const auto& end) { return end.first; }) > 0;
  seeder_ = membership.seeder;
  for (const auto& [site, reason] : ended) MarkGone(site, reason, actions);
  ForgetUnknown(membership, actions);
  std::vector<SiteId> entered;
  for (const auto& [site, member] : membership.sites) {
    SiteRecord& record = state_.sites[site];
    const bool was_active = core::IsActive(record.state);  // in this stay: otherwise it is gone by now
    record.session = member.session;
    record.stay = member.stay;
    record.state = member.state;
    record.reason = member.reason;
    if (member.releases > record.releases) {
      record.quarantined = false;
      record.refusals = 0;
    }
    record.releases = member.releases;
    record.last_merged.resize(num_fragments(), -1);
    if (member.state == SiteState::kGone) {
      gone_.Note(site, now_ms_);
      continue;
    }
    gone_.IsBack(site);
    links_.try_emplace(site);
    if (!core::IsActive(record.state)) {
      record.first_versions.clear();
    } else if (!was_active) {
      record.first_versions = member.first_versions;
      record.first_versions.resize(num_fragments(), 0);
      for (FragmentId p = 0; p < num_fragments(); ++p) {
        Version& first = record.first_versions[p];
        first = std::max(first, state_.versions[p]);
        // An earlier stay may have left its contribution in the open round; one per round is enough.
        if (state_.contributions[p].contains(site)) first = std::max(first, state_.versions[p] + 1);
      }
      entered.push_back(site);
    }
  }
  if ((state_.paused && !membership.paused) || (state_.stopped != membership.stopped)) pace_.InterruptedAll();
  state_.started = membership.started;
  state_.finished = membership.finished;
  state_.paused = membership.paused;
  state_.stopped = membership.stopped;
  for (const SiteId& site : entered) actions.push_back(FollowEntry(site));
  if (other_seeder) AskSeederOfFollowed(actions);
  CloseRounds(actions);
  return actions;
}

// Shard 0 has given up their names; if a contribution waits here, the name goes later.
void RoundTable::ForgetUnknown(const Membership& membership, Actions& actions) {
  std::vector<SiteId> unknown;
  for (const auto& [site, record] : state_.sites) {
    if (record.state == SiteState::kGone && !membership.sites.contains(site) && !WaitsForMerge(state_, site)) {
      unknown.push_back(site);
    }
  }
  for (const SiteId& site : unknown) {
    state_.sites.erase(site);
    gone_.IsBack(site);
    actions.push_back(Forgotten{site});
  }
}

void RoundTable::AskSeederOfFollowed(Actions& actions) const {
  const auto seeder = state_.sites.find(seeder_);
  if (seeded_here_ || seeder == state_.sites.end() || seeder->second.state != SiteState::kJoining) return;
  actions.push_back(RequestSeed{seeder_});
}

TableJoin RoundTable::JoinFollowed(const JoinRequest& request) {
  TableJoin decision;
  const auto found = state_.sites.find(request.site);
  const bool told = found != state_.sites.end() && found->second.session == request.session &&
                    found->second.stay == request.stay && found->second.state != SiteState::kGone;
  if (!told) {
    decision.reason = "shard 0 has not told this shard of the site's stay yet";
    decision.retry_after_ms = kNotToldMs;
    return decision;
  }
  decision.resumed = true;  // shard 0's welcome has already decided about the site's transfers
  Accept(request.site, decision);
  // The site may have missed its entry. A site that has its place already knows it.
  if (core::IsActive(found->second.state)) decision.actions.push_back(FollowEntry(request.site));
  // Anything it sent before may be lost with this shard's last life.
  if (request.site == seeder_) AskSeederOfFollowed(decision.actions);
  return decision;
}

}  // namespace causeway::server
