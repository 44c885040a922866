#include "server/rounds/member_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/limits.h"

namespace causeway::server {

using core::SiteId;
using core::SiteRecord;
using core::SiteState;

namespace {

constexpr int kLongestLoop = 3;      // 8 leases
constexpr int64_t kAliveMs = 2'500;  // two heartbeats, and their way

std::string WhyStill(const std::string& why) {
  return why.empty() ? "" : absl::StrCat("its training stands still: ", why);
}

std::string WhyLost(bool draining, const RunFacts::Link& link, int64_t lease_ms) {
  return absl::StrCat(draining ? "was to leave; " : "", link.cut_off ? "does not hear the coordinator" : "not heard of",
                      " for ", lease_ms, " ms (lease_ms)", link.standing_still.empty() ? "" : ": ",
                      WhyStill(link.standing_still));
}

}  // namespace

MemberRules::MemberRules(RunFacts& facts) : facts_(facts) {
  for (auto& [site, record] : facts_.state.sites) {
    if (record.state == SiteState::kGone) {
      Note(site);
      continue;
    }
    facts_.links[site] = {.connected = false,
                          .deadline_ms = facts_.now_ms + lease_ms(),
                          .merged = true,  // as far as is known
                          .gave_ms = facts_.now_ms};
    record.reason = "expected back after the coordinator's restart";
  }
}

void MemberRules::Connect(const SiteId& site, const std::string& process, bool resumed) {
  RunFacts::Link& link = facts_.links[site];
  RunFacts::Link now{.connected = true, .deadline_ms = facts_.now_ms + lease_ms(), .gave_ms = facts_.now_ms};
  now.process = process;
  now.former = link.process == process ? link.former : link.process;
  if (resumed) {
    now.completed_at = std::move(link.completed_at);
    now.merged = link.merged;
    now.entered_ms = link.entered_ms;
    now.gave_ms = link.gave_ms;
  }
  link = std::move(now);
}

void MemberRules::Disconnect(const SiteId& site) {
  RunFacts::Link& link = facts_.links[site];
  link.connected = false;
  link.deadline_ms = facts_.now_ms + lease_ms();
  facts_.state.sites[site].reason = "its control stream broke; expected back within the lease";
}

bool MemberRules::Report(const SiteReport& report) {
  RunFacts::Link& link = facts_.links[report.site];
  SiteRecord& record = facts_.state.sites[report.site];
  if (link.standing_still != report.standing_still) {
    link.standing_still = report.standing_still;
    record.reason = WhyStill(report.standing_still);
  }
  if (!link.standing_still.empty()) return false;
  const int64_t unheard_ms = RanSince(facts_.now_ms - std::max<int64_t>(0, report.unheard_ms));
  link.cut_off = unheard_ms > lease_ms() / 2;
  link.deadline_ms = std::max(link.deadline_ms, facts_.now_ms - unheard_ms + lease_ms());
  return core::IsActive(record.state);
}

bool MemberRules::Completes(const SiteReport& report) {
  RunFacts::Link& link = facts_.links[report.site];
  if (report.completing && link.completed_at.empty()) link.completed_at = facts_.state.versions;
  return std::exchange(link.completing, report.completing) != report.completing;
}

absl::Status MemberRules::Drain(const SiteId& site, const std::string& reason) {
  const auto found = facts_.state.sites.find(site);
  if (found != facts_.state.sites.end() && IsLost(found->second)) {
    found->second.ended = core::Ended::kDrained;
    found->second.reason = absl::StrCat(reason, " after its lease had ended");
    return absl::OkStatus();
  }
  if (found == facts_.state.sites.end() || found->second.state != SiteState::kTraining) {
    return absl::FailedPreconditionError(
        absl::StrCat("site ", site, " is not training: it is ",
                     found == facts_.state.sites.end() ? "not in the run" : core::SiteStateName(found->second.state)));
  }
  BeginToLeave(site, found->second, reason);
  return absl::OkStatus();
}

void MemberRules::BeginToLeave(const SiteId& site, SiteRecord& record, const std::string& reason) {
  record.state = SiteState::kDraining;
  record.reason = reason;
  facts_.links[site].gave_ms = facts_.now_ms;
}

void MemberRules::Contributed(const SiteId& site) { facts_.links[site].gave_ms = facts_.now_ms; }

void MemberRules::Merged(const SiteId& site) {
  const auto link = facts_.links.find(site);
  if (link != facts_.links.end()) link->second.merged = true;
}

std::vector<Dropped> MemberRules::DrainsThatStand(int64_t stands_ms) {
  std::vector<Dropped> standing;
  for (auto& [site, link] : facts_.links) {
    if (facts_.held) link.gave_ms = facts_.now_ms;
    const int64_t since_ms = facts_.now_ms - link.gave_ms;
    if (facts_.state.sites.at(site).state != SiteState::kDraining || since_ms < std::max(lease_ms(), stands_ms))
      continue;
    standing.push_back(
        {site, core::Ended::kDrained, absl::StrCat("was to leave, and has contributed nothing for ", since_ms, " ms")});
  }
  return standing;
}

void MemberRules::DrainAll(const std::string& reason) {
  for (auto& [site, record] : facts_.state.sites) {
    if (record.state == SiteState::kTraining) BeginToLeave(site, record, reason);
  }
}

void MemberRules::NoteEnd(const Dropped& dropped) {
  if (!core::IsActive(facts_.state.sites[dropped.site].state)) return;
  const RunFacts::Link& link = facts_.links[dropped.site];
  const int64_t heard_ms = link.deadline_ms - lease_ms();
  if (link.merged && heard_ms - link.entered_ms >= lease_ms()) {
    facts_.crash_loops.erase(dropped.site);
  } else if (dropped.ended == core::Ended::kExpired) {
    RunFacts::CrashLoop& loop = facts_.crash_loops[dropped.site];
    const int before = std::min(loop.stays++, kLongestLoop);  // one alone is no row
    loop.until_ms = facts_.now_ms + (before == 0 ? 0 : lease_ms() << before);
  }
}

void MemberRules::End(const Dropped& dropped) {
  NoteEnd(dropped);
  SiteRecord& record = facts_.state.sites[dropped.site];
  record.state = SiteState::kGone;
  record.ended = dropped.ended;
  record.reason = dropped.reason;
  facts_.links.erase(dropped.site);
  Note(dropped.site);
}

std::vector<Dropped> MemberRules::Expired() const {
  std::vector<Dropped> expired;
  for (const auto& [site, link] : facts_.links) {
    if (facts_.now_ms < link.deadline_ms) continue;
    const bool draining = facts_.state.sites.at(site).state == SiteState::kDraining;
    expired.push_back(
        {site, draining ? core::Ended::kDrained : core::Ended::kExpired, WhyLost(draining, link, lease_ms())});
  }
  return expired;
}

JoinDecision MemberRules::WhyNameIsTaken(const SiteId& site) const {
  JoinDecision decision;
  const auto found = facts_.state.sites.find(site);
  if (found == facts_.state.sites.end()) {
    if (!gone_.HasRoom(facts_.state)) {
      decision.reason = absl::StrCat("the run has ", core::kMaxSites, " sites, which is the limit");
    }
    return decision;
  }
  if (found->second.state == SiteState::kGone) return decision;
  const RunFacts::Link& link = facts_.links.at(site);
  decision.reason = absl::StrCat("site ", site, " is in the run already");
  if (!IsAlive(link)) {
    decision.retry_after_ms = std::max<int64_t>(1, link.deadline_ms - facts_.now_ms);
    absl::StrAppend(&decision.reason, "; its name is free in ", decision.retry_after_ms, " ms unless it returns");
  } else {
    absl::StrAppend(&decision.reason, " and alive; give this one another name");
  }
  return decision;
}

// A heartbeat comes every second, or every quarter of a lease: a process whose host died is not alive any more.
bool MemberRules::IsAlive(const RunFacts::Link& link) const {
  const int64_t heard_ms = lease_ms() - (link.deadline_ms - facts_.now_ms);
  return link.connected && heard_ms < std::min<int64_t>(kAliveMs, lease_ms() / 2);
}

JoinDecision MemberRules::WhyPlaceIsTaken(const JoinRequest& request) {
  const auto found = facts_.links.find(request.site);
  if (found == facts_.links.end() || request.process == found->second.process || !IsAlive(found->second)) return {};
  RunFacts::Link& link = found->second;
  const bool anew = link.rival_ms == 0 || facts_.now_ms - link.rival_asked_ms > lease_ms();
  if (anew) link.rival_ms = facts_.now_ms;
  link.rival_asked_ms = facts_.now_ms;
  JoinDecision decision{.reason = absl::StrCat("site ", request.site,
                                               " is in the run already and alive, in another process "
                                               "that has the same checkpoint"),
                        .rival = true};
  const int64_t asks_ms = facts_.now_ms - link.rival_ms;
  if (asks_ms < lease_ms() || request.process == link.former) {
    decision.retry_after_ms = std::min<int64_t>(kAliveMs, lease_ms() / 2);
    absl::StrAppend(&decision.reason, "; this one waits for its end");
  } else {
    absl::StrAppend(&decision.reason, "; give this one another name, and a --checkpoint_dir of its own");
  }
  return decision;
}

std::optional<SiteId> MemberRules::MakeRoomFor(const SiteId& site) {
  std::optional<SiteId> given_up;
  if (GoneNames::MayHaveForgotten(facts_.state, site)) given_up = gone_.GiveUp(facts_.state, site);
  gone_.IsBack(site);
  return given_up;
}

void MemberRules::Follow(const SiteId& site, SiteState state) {
  if (state == SiteState::kGone) return Note(site);
  gone_.IsBack(site);
  facts_.links.try_emplace(site);
}

void MemberRules::Forget(const SiteId& site) {
  facts_.state.sites.erase(site);
  facts_.crash_loops.erase(site);
  gone_.IsBack(site);
}

int64_t MemberRules::RanSince(int64_t since_ms) const {
  int64_t ran_ms = facts_.now_ms - since_ms;
  for (const auto& [from_ms, to_ms] : stalls_ms_) ran_ms -= std::max<int64_t>(0, to_ms - std::max(from_ms, since_ms));
  return std::max<int64_t>(0, ran_ms);
}

void MemberRules::StoodStill(int64_t from_ms, int64_t to_ms) {
  std::erase_if(stalls_ms_, [this](const auto& stall) { return RanSince(stall.second) > lease_ms(); });
  stalls_ms_.emplace_back(from_ms, to_ms);
  for (auto& [site, link] : facts_.links) {
    const int64_t heard_ms = link.deadline_ms - lease_ms();
    link.deadline_ms += to_ms - std::clamp(heard_ms, from_ms, to_ms);
  }
}

}  // namespace causeway::server
