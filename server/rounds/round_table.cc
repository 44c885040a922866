#include "server/rounds/round_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::server {
namespace {

using core::FragmentId;
using core::SessionId;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;
using core::Version;

bool Contains(const std::vector<SiteId>& sites, const SiteId& site) {
  return std::find(sites.begin(), sites.end(), site) != sites.end();
}

bool IsActive(const SiteRecord& record) {
  return record.state == SiteState::kTraining || record.state == SiteState::kDraining;
}

}  // namespace

const char* RunStateName(RunState state) {
  switch (state) {
    case RunState::kWaiting: return "waiting";
    case RunState::kTraining: return "training";
    case RunState::kPaused: return "paused";
    case RunState::kDone: return "done";
  }
  return "unknown";
}

RoundTable::RoundTable(const RoundRules& rules, core::RoundState state, int64_t now_ms)
    : rules_(rules), state_(std::move(state)) {
  const int fragments = rules_.schedule.num_fragments();
  state_.versions.resize(fragments);
  state_.contributions.resize(fragments);
  for (auto& [site, record] : state_.sites) {
    if (record.state == SiteState::kGone) continue;
    links_[site] = {.connected = false, .deadline_ms = now_ms + rules_.lease_ms};
    record.reason = "expected back after the coordinator's restart";
  }
}

bool RoundTable::InSession(const SiteId& site, const SessionId& session) const {
  const auto found = state_.sites.find(site);
  return found != state_.sites.end() && found->second.state != SiteState::kGone && found->second.session == session;
}

std::vector<SiteId> RoundTable::ActiveSites() const {
  std::vector<SiteId> sites;
  for (const auto& [site, record] : state_.sites) {
    if (IsActive(record)) sites.push_back(site);
  }
  return sites;
}

JoinDecision RoundTable::Join(const SiteId& site, const SessionId& session, const std::vector<Version>& held,
                              int64_t now_ms) {
  JoinDecision decision;
  for (size_t p = 0; p < held.size() && p < state_.versions.size(); ++p) {
    if (held[p] <= state_.versions[p]) continue;
    decision.reason = absl::StrCat("the site holds version ", held[p], " of fragment ", p,
                                   ", the coordinator only version ", state_.versions[p],
                                   ": its state is older than the run's; start the coordinator on the newer state, or "
                                   "the site afresh");
    return decision;
  }
  if (InSession(site, session) && held.empty() && IsActive(state_.sites[site])) {
    Drop(site, "came back before it had taken its place in the schedule", decision.actions);
  }
  if (InSession(site, session)) {
    links_[site] = {.connected = true, .deadline_ms = now_ms + rules_.lease_ms};
    SiteRecord& record = state_.sites[site];
    record.reason.clear();
    decision.accepted = true;
    decision.resumed = IsActive(record);
    AskForSeed(site, decision.actions);
    return decision;
  }
  if (run_state() == RunState::kDone) {
    decision.reason = "the run is done";
    return decision;
  }
  const auto found = state_.sites.find(site);
  if (found != state_.sites.end() && found->second.state != SiteState::kGone) {
    const Link& link = links_[site];
    decision.reason = absl::StrCat("site ", site, " is in the run already");
    if (!link.connected) {
      decision.retry_after_ms = std::max<int64_t>(1, link.deadline_ms - now_ms);
      absl::StrAppend(&decision.reason, "; its name is free in ", decision.retry_after_ms, " ms unless it returns");
    } else {
      absl::StrAppend(&decision.reason, " and alive; give this one another name");
    }
    return decision;
  }
  if (found == state_.sites.end() && state_.sites.size() >= static_cast<size_t>(core::kMaxSites)) {
    decision.reason = absl::StrCat("the run has ", core::kMaxSites, " sites, which is the limit");
    return decision;
  }
  SiteRecord& record = state_.sites[site];
  record.session = session;
  record.state = SiteState::kJoining;
  record.reason = "downloads the anchors";
  record.first_versions.clear();
  record.last_merged.assign(state_.versions.size(), -1);
  links_[site] = {.connected = true, .deadline_ms = now_ms + rules_.lease_ms};
  decision.accepted = true;
  AskForSeed(site, decision.actions);
  return decision;
}

void RoundTable::AskForSeed(const SiteId& joined, Actions& actions) {
  if (state_.seeded) return;
  const SiteId before = seeder_;
  const auto joining = [](const auto& site) { return site.second.state == SiteState::kJoining; };
  const auto seeder = state_.sites.find(seeder_);
  if (seeder == state_.sites.end() || !joining(*seeder)) {
    const auto next = std::find_if(state_.sites.begin(), state_.sites.end(), joining);
    seeder_ = next == state_.sites.end() ? "" : next->first;
  }
  if (!seeder_.empty() && (seeder_ != before || seeder_ == joined)) actions.push_back(RequestSeed{seeder_});
}

void RoundTable::Heard(const SiteId& site, const SessionId& session, int64_t now_ms) {
  if (InSession(site, session)) links_[site].deadline_ms = now_ms + rules_.lease_ms;
}

void RoundTable::Disconnected(const SiteId& site, const SessionId& session, int64_t now_ms) {
  if (!InSession(site, session)) return;
  links_[site] = {.connected = false, .deadline_ms = now_ms + rules_.lease_ms};
  state_.sites[site].reason = "its control stream broke; expected back within the lease";
}

absl::Status RoundTable::StartDraining(const SiteId& site, const std::string& reason) {
  const auto found = state_.sites.find(site);
  if (found == state_.sites.end() || found->second.state != SiteState::kTraining) {
    return absl::FailedPreconditionError(
        absl::StrCat("site ", site, " is not training: it is ",
                     found == state_.sites.end() ? "not in the run" : core::SiteStateName(found->second.state)));
  }
  found->second.state = SiteState::kDraining;
  found->second.reason = reason;
  return absl::OkStatus();
}

Actions RoundTable::Leave(const SiteId& site, const SessionId& session, bool finished, const std::string& reason) {
  Actions actions;
  if (!InSession(site, session)) return actions;
  state_.finished |= finished;
  Drop(site, reason, actions);
  return actions;
}

void RoundTable::Drop(const SiteId& site, const std::string& reason, Actions& actions) {
  SiteRecord& record = state_.sites[site];
  record.state = SiteState::kGone;
  record.reason = reason;
  links_.erase(site);
  std::erase(ready_, site);
  actions.push_back(Dropped{site, reason});
  AskForSeed(/*joined=*/"", actions);
  CloseComplete(actions);
  DropStranded(actions);
}

// A joiner does not contribute to rounds that were due before it entered. Where all who should have are gone, with
// nothing admitted, such a round could never close: whoever is left enters anew, from where somebody can fill it.
void RoundTable::DropStranded(Actions& actions) {
  const std::vector<SiteId> active = ActiveSites();
  if (active.empty()) return;
  for (FragmentId p = 0; p < rules_.schedule.num_fragments(); ++p) {
    if (!state_.contributions[p].empty() || !MissingFrom(p).empty()) continue;
    Drop(active.front(), absl::StrCat("nobody is left to contribute to the open round of fragment ", p, "; joins anew"),
         actions);
    return;  // that drop looked after the others
  }
}

Actions RoundTable::Seeded() {
  state_.seeded = true;
  return {};
}

Actions RoundTable::Ready(const SiteId& site, const SessionId& session) {
  if (!InSession(site, session) || !state_.seeded) return {};
  SiteRecord& record = state_.sites[site];
  if (record.state != SiteState::kJoining) return {};
  if (state_.started) return {EnterNow(site)};
  if (!Contains(ready_, site)) ready_.push_back(site);
  record.reason = "ready; waits for the start";
  return StartIfEnough();
}

Actions RoundTable::StartIfEnough() {
  Actions actions;
  if (static_cast<int>(ready_.size()) < rules_.min_sites) return actions;
  state_.started = true;
  std::sort(ready_.begin(), ready_.end());
  for (const SiteId& site : ready_) EnterNow(site);
  // Each is told of all, so that they share the data from the first step.
  for (const SiteId& site : ready_) actions.push_back(EnterNow(site));
  ready_.clear();
  return actions;
}

Enter RoundTable::EnterNow(const SiteId& site) {
  SiteRecord& record = state_.sites[site];
  Enter enter{.site = site, .entry = {}};
  enter.entry.step = EntryStep(rules_.schedule, state_.versions);
  enter.entry.versions = state_.versions;
  // With nobody else in the run, the joiner has to fill every open round itself, also one that is behind the others.
  for (FragmentId p = 0; p < rules_.schedule.num_fragments() && ActiveSites().empty(); ++p) {
    enter.entry.step = std::min(enter.entry.step, rules_.schedule.SendStep(p, state_.versions[p]) - 1);
  }
  for (FragmentId p = 0; p < rules_.schedule.num_fragments(); ++p) {
    Version first = std::max(state_.versions[p], rules_.schedule.FirstBaseAfter(p, enter.entry.step));
    // An earlier stay of this site may have left its contribution in the open round; one a round is enough.
    if (state_.contributions[p].contains(site)) first = std::max(first, state_.versions[p] + 1);
    enter.entry.first_versions.push_back(first);
  }
  record.state = SiteState::kTraining;
  record.reason.clear();
  record.first_versions = enter.entry.first_versions;
  enter.entry.sites = ActiveSites();
  return enter;
}

absl::Status RoundTable::CheckContribution(const SiteId& site, const SessionId& session, FragmentId fragment,
                                           Version base) const {
  if (fragment < 0 || fragment >= static_cast<FragmentId>(state_.versions.size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a fragment from 0 to ", state_.versions.size() - 1, ", got ", fragment));
  }
  if (!InSession(site, session)) {
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " is not in the run with this session"));
  }
  const SiteRecord& record = state_.sites.at(site);
  if (!IsActive(record)) return absl::FailedPreconditionError(absl::StrCat("site ", site, " has not entered yet"));
  const Version open = state_.versions[fragment];
  if (base < record.first_versions[fragment]) {
    return absl::FailedPreconditionError(absl::StrCat("the site's first contribution to fragment ", fragment,
                                                      " is of base version ", record.first_versions[fragment],
                                                      ", this one is of ", base));
  }
  if (record.last_merged[fragment] >= base) return absl::AlreadyExistsError("merged already");
  if (base != open) {
    return absl::FailedPreconditionError(absl::StrCat("the open round of fragment ", fragment, " is of base version ",
                                                      open, ", the contribution is of ", base));
  }
  if (state_.contributions[fragment].contains(site)) return absl::AlreadyExistsError("admitted already");
  return absl::OkStatus();
}

Actions RoundTable::Admit(const SiteId& site, FragmentId fragment, Version base) {
  CHECK(base == state_.versions[fragment]);
  auto& contributors = state_.contributions[fragment];
  CHECK(!contributors.contains(site));
  contributors[site] = {.base = base};
  Actions actions;
  CloseComplete(actions);
  return actions;
}

std::vector<SiteId> RoundTable::MissingFrom(FragmentId fragment) const {
  std::vector<SiteId> missing;
  for (const auto& [site, record] : state_.sites) {
    const bool expected = IsActive(record) && record.first_versions[fragment] <= state_.versions[fragment];
    if (expected && !state_.contributions[fragment].contains(site)) missing.push_back(site);
  }
  return missing;
}

void RoundTable::CloseComplete(Actions& actions) {
  for (FragmentId p = 0; p < rules_.schedule.num_fragments(); ++p) {
    auto& contributors = state_.contributions[p];
    if (contributors.empty() || !MissingFrom(p).empty()) continue;
    CloseRound close{.fragment = p, .base = state_.versions[p]};
    close.weights.assign(contributors.size(), 1.0);
    for (const auto& [site, admitted] : contributors) {
      state_.sites[site].last_merged[p] = close.base;
      close.contributors.push_back(site);
    }
    close.sites = ActiveSites();
    contributors.clear();
    ++state_.versions[p];
    actions.push_back(std::move(close));
  }
}

Actions RoundTable::Tick(int64_t now_ms) {
  std::vector<SiteId> expired;
  for (const auto& [site, link] : links_) {
    if (now_ms >= link.deadline_ms) expired.push_back(site);
  }
  Actions actions;
  for (const SiteId& site : expired) {
    if (!links_.contains(site)) continue;  // gone with another one
    Drop(site, absl::StrCat("not heard of for ", rules_.lease_ms, " ms (lease_ms)"), actions);
  }
  return actions;
}

RunState RoundTable::run_state() const {
  if (!state_.started) return RunState::kWaiting;
  if (!ActiveSites().empty()) return RunState::kTraining;
  const bool joining = std::any_of(state_.sites.begin(), state_.sites.end(),
                                   [](const auto& site) { return site.second.state == SiteState::kJoining; });
  return state_.finished && !joining ? RunState::kDone : RunState::kPaused;
}

std::string RoundTable::Reason() const {
  switch (run_state()) {
    case RunState::kWaiting:
      return absl::StrCat(ready_.size(), " of ", rules_.min_sites, " sites are ready (min_sites)");
    case RunState::kTraining: return "";
    case RunState::kPaused: return "no site is in the run; it goes on when one joins";
    case RunState::kDone: return "all steps are done";
  }
  return "";
}

std::string RoundTable::RoundReason(FragmentId fragment) const {
  if (state_.contributions[fragment].empty()) return "";
  return absl::StrCat("waiting for ", absl::StrJoin(MissingFrom(fragment), ", "));
}

}  // namespace causeway::server
