#include "server/rounds/round_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/limits.h"

namespace causeway::server {
namespace {

constexpr int64_t kAliveMs = 2'500;  // two heartbeats, and their way

std::string WhyStill(const std::string& why) {
  return why.empty() ? "" : absl::StrCat("its training stands still: ", why);
}

// Records the site's report, also as the reason for its state.
bool StandsStill(const std::string& said, std::string& noted, std::string& reason) {
  if (noted != said) reason = WhyStill(noted = said);
  return !noted.empty();
}

std::string WhyLost(bool draining, bool cut_off, int64_t lease_ms, const std::string& still) {
  return absl::StrCat(draining ? "was to leave; " : "", cut_off ? kDoesNotHear : kNotHeardOf, " for ", lease_ms,
                      " ms (lease_ms)", still.empty() ? "" : ": ", WhyStill(still));
}

}  // namespace

using core::FragmentId;
using core::SessionId;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;
using core::Version;

RoundTable::RoundTable(const RoundSettings& rules, core::RoundState state, int64_t now_ms, SiteId seeder)
    : rules_(rules),
      schedule_(rules.sync.Schedule()),
      state_(std::move(state)),
      seeder_(std::move(seeder)),
      now_ms_(now_ms) {
  state_.versions.resize(num_fragments());
  state_.contributions.resize(num_fragments());
  state_.norms.resize(num_fragments());
  open_.resize(num_fragments());
  closed_ms_.resize(num_fragments());
  for (auto& [site, record] : state_.sites) {
    record.last_merged.resize(num_fragments(), -1);
    // A journal without a seed does not know how many fragments there are, so that nothing has checked its lists.
    if (core::IsActive(record.state)) record.first_versions.resize(num_fragments(), 0);
    if (record.state == SiteState::kGone) {
      gone_.Note(site, now_ms);
      continue;
    }
    links_[site] = {.connected = false, .deadline_ms = now_ms + rules_.membership.lease_ms};
    record.reason = "expected back after the coordinator's restart";
  }
  seeded_here_ = state_.seeded;
  heard_of_shard_.assign(rules_.shard.count, false);
  seeded_shard_.assign(rules_.shard.count, false);
  heard_of_shard_[rules_.shard.index] = true;
  // Shard 0 knows it of the others for certain only once sites have entered.
  if (rules_.shard.leads() && !rules_.shard.alone()) state_.seeded = seeded_here_ && state_.started;
  for (FragmentId p = 0; p < num_fragments() && !synchronous(); ++p) NoteQuorum(p);  // graces start anew, too
}

void RoundTable::SetNow(int64_t now_ms) { now_ms_ = std::max(now_ms_, now_ms); }

bool RoundTable::InSession(const SiteId& site, const SessionId& session) const {
  const auto found = state_.sites.find(site);
  return found != state_.sites.end() && found->second.state != SiteState::kGone && found->second.session == session;
}

std::vector<SiteId> RoundTable::ActiveSites() const {
  std::vector<SiteId> sites;
  for (const auto& [site, record] : state_.sites) {
    if (core::IsActive(record.state)) sites.push_back(site);
  }
  return sites;
}

int RoundTable::NumActive() const {
  return static_cast<int>(
      std::count_if(state_.sites.begin(), state_.sites.end(), [](const auto& site) { return Counts(site.second); }));
}

bool RoundTable::AnyJoining() const {
  return std::any_of(state_.sites.begin(), state_.sites.end(),
                     [](const auto& site) { return site.second.state == SiteState::kJoining; });
}

bool RoundTable::AnySiteIn() const {
  return std::ranges::any_of(state_.sites, [](const auto& site) { return site.second.state != SiteState::kGone; });
}

bool RoundTable::IsReady(const SiteId& site) const { return std::ranges::count(ready_, site) > 0; }

bool RoundTable::IsCompleting(const SiteId& site) const {
  const auto link = links_.find(site);
  return link != links_.end() && link->second.completing;
}

void RoundTable::Refuse(const SiteId& site, TableJoin& decision) const {
  if (run_state() == RunState::kDone) {
    decision.reason = "the run is done";
    return;
  }
  const auto found = state_.sites.find(site);
  if (found != state_.sites.end() && found->second.state != SiteState::kGone) {
    const Link& link = links_.at(site);
    decision.reason = absl::StrCat("site ", site, " is in the run already");
    // A heartbeat comes every second, or every quarter of a lease: a process whose host died is not alive any more.
    const int64_t heard_ms = rules_.membership.lease_ms - (link.deadline_ms - now_ms_);
    const bool alive = link.connected && heard_ms < std::min<int64_t>(kAliveMs, rules_.membership.lease_ms / 2);
    if (!alive) {
      decision.retry_after_ms = std::max<int64_t>(1, link.deadline_ms - now_ms_);
      absl::StrAppend(&decision.reason, "; its name is free in ", decision.retry_after_ms, " ms unless it returns");
    } else {
      absl::StrAppend(&decision.reason, " and alive; give this one another name");
    }
    return;
  }
  if (found == state_.sites.end() && !gone_.HasRoom(state_)) {
    decision.reason = absl::StrCat("the run has ", core::kMaxSites, " sites, which is the limit");
  }
}

void RoundTable::Accept(const SiteId& site, TableJoin& decision) {
  links_[site] = {.connected = true, .deadline_ms = now_ms_ + rules_.membership.lease_ms};
  pace_.Interrupted(site);
  decision.accepted = true;
  decision.last_admitted = LastAdmitted(site);
  AskForSeed(site, decision.actions);
}

TableJoin RoundTable::Join(const JoinRequest& request, int64_t now_ms) {
  SetNow(now_ms);
  const SiteId& site = request.site;
  TableJoin decision;
  if (follows()) return JoinFollowed(request);
  const bool in_session = InSession(site, request.session);
  bool goes_on = in_session;
  if (in_session && core::IsActive(state_.sites[site].state)) {
    const char* restarts = request.held.empty() ? "came back before it had taken its place in the schedule"
                           : request.from_checkpoint && !synchronous() ? "goes on from a checkpoint"
                                                                       : nullptr;
    if (restarts != nullptr) Drop(site, restarts, decision.actions);
    goes_on = restarts == nullptr;
    decision.resumed = goes_on;
  }
  if (goes_on) {
    SiteRecord& record = state_.sites[site];
    record.reason.clear();
    decision.forgotten = VoidAtJoin(record, request);
    Accept(site, decision);
    return decision;
  }
  if (state_.stopped) {
    decision.reason = "the run is stopped by an operator; sites can join once it is resumed";
    return decision;
  }
  if (!in_session) Refuse(site, decision);
  if (!decision.reason.empty()) return decision;
  if (MayHaveForgotten(site)) {
    decision.actions.push_back(Forgotten{gone_.GiveUp(state_, site)});
    decision.forgotten = !request.held.empty();
  }
  gone_.IsBack(site);
  SiteRecord& record = state_.sites[site];
  record.session = request.session;
  ++record.stay;
  record.state = SiteState::kJoining;
  record.reason = "downloads the anchors";
  record.first_versions.clear();
  record.last_merged.resize(num_fragments(), -1);
  decision.forgotten |= VoidAtJoin(record, request);
  Accept(site, decision);
  return decision;
}

// Repeated until the site has its place: it may have missed the first message.
bool RoundTable::VoidAtJoin(const SiteRecord& record, const JoinRequest& request) {
  return record.starts_anew && !core::IsActive(record.state) && !request.held.empty();
}

void RoundTable::AskForSeed(const SiteId& joined, Actions& actions) {
  if (state_.seeded || follows()) return;
  const SiteId before = seeder_;
  const auto joining = [](const auto& site) { return site.second.state == SiteState::kJoining; };
  const auto seeder = state_.sites.find(seeder_);
  if (seeder == state_.sites.end() || !joining(*seeder)) {
    const auto next = std::find_if(state_.sites.begin(), state_.sites.end(), joining);
    seeder_ = next == state_.sites.end() ? "" : next->first;
  }
  if (!seeder_.empty() && (seeder_ != before || seeder_ == joined)) actions.push_back(RequestSeed{seeder_});
}

Actions RoundTable::Heard(const SiteId& site, const SessionId& session, const SiteBeat& beat, int64_t now_ms) {
  SetNow(now_ms);
  Actions actions;
  if (!InSession(site, session)) return actions;
  Link& link = links_[site];
  if (StandsStill(beat.standing_still, link.standing_still, state_.sites[site].reason)) return actions;
  const int64_t unheard_ms = RanSince(now_ms_ - std::max<int64_t>(0, beat.unheard_ms));
  link.cut_off = unheard_ms > rules_.membership.lease_ms / 2;
  link.deadline_ms = std::max(link.deadline_ms, now_ms_ - unheard_ms + rules_.membership.lease_ms);
  if (!core::IsActive(state_.sites[site].state)) return actions;
  // A site reports several times within its lease, or it was cut off.
  if (beat.step >= link.entry_step) pace_.Heard(site, beat.step, now_ms_, rules_.membership.lease_ms / 2);
  if (link.completing == beat.completing) return actions;
  link.completing = beat.completing;
  CloseRounds(actions);
  return actions;
}

void RoundTable::Disconnected(const SiteId& site, const SessionId& session, int64_t now_ms) {
  SetNow(now_ms);
  if (!InSession(site, session)) return;
  Link& link = links_[site];
  link.connected = false;
  link.deadline_ms = now_ms_ + rules_.membership.lease_ms;
  pace_.Interrupted(site);
  state_.sites[site].reason = "its control stream broke; expected back within the lease";
}

absl::Status RoundTable::StartDraining(const SiteId& site, const std::string& reason) {
  const auto found = state_.sites.find(site);
  if (found != state_.sites.end() && IsLost(found->second)) {
    found->second.reason = absl::StrCat(reason, " after its lease had ended");
    return absl::OkStatus();
  }
  if (found == state_.sites.end() || found->second.state != SiteState::kTraining) {
    return absl::FailedPreconditionError(
        absl::StrCat("site ", site, " is not training: it is ",
                     found == state_.sites.end() ? "not in the run" : core::SiteStateName(found->second.state)));
  }
  found->second.state = SiteState::kDraining;
  found->second.reason = reason;
  return absl::OkStatus();
}

Actions RoundTable::Leave(const SiteId& site, const SessionId& session, bool finished, const std::string& reason,
                          int64_t now_ms) {
  SetNow(now_ms);
  Actions actions;
  if (!InSession(site, session)) return actions;
  state_.finished |= finished;
  Drop(site, reason, actions);
  return actions;
}

void RoundTable::MarkGone(const SiteId& site, const std::string& reason, Actions& actions) {
  SiteRecord& record = state_.sites[site];
  record.state = SiteState::kGone;
  record.reason = reason;
  links_.erase(site);
  gone_.Note(site, now_ms_);
  pace_.Forget(site);
  for (OpenRound& open : open_) open.refused.erase(site);
  actions.push_back(Dropped{site, reason});
}

void RoundTable::Drop(const SiteId& site, const std::string& reason, Actions& actions) {
  MarkGone(site, reason, actions);
  std::erase(ready_, site);
  AskForSeed(/*joined=*/"", actions);
  CloseRounds(actions);
  DropStranded(actions);
}

// A joiner of a synchronous run does not contribute to rounds that were due before it entered. If all sites that should
// have contributed are gone, with nothing admitted, such a round could never close: a remaining site enters anew, at a
// step from which it can fill the round.
void RoundTable::DropStranded(Actions& actions) {
  const std::optional<FragmentId> fragment = StrandedFragment();
  if (!fragment) return;
  // That drop takes care of the others.
  Drop(Stranded(), absl::StrCat("no site is left to fill the open round of fragment ", *fragment, "; joins anew"),
       actions);
}

SiteId RoundTable::Stranded() const {
  return std::ranges::find_if(state_.sites, [](const auto& site) { return Counts(site.second); })->first;
}

std::optional<FragmentId> RoundTable::StrandedFragment() const {
  if (!synchronous() || NumActive() == 0) return std::nullopt;
  for (FragmentId p = 0; p < num_fragments(); ++p) {
    if (Owns(p) && state_.contributions[p].empty() && !AnyMissingFrom(p)) return p;
  }
  return std::nullopt;
}

Actions RoundTable::Ready(const SiteId& site, const SessionId& session) {
  if (!InSession(site, session) || !seeded_here_ || state_.stopped || follows()) return {};
  SiteRecord& record = state_.sites[site];
  if (record.state != SiteState::kJoining) return {};
  if (std::find(ready_.begin(), ready_.end(), site) == ready_.end()) ready_.push_back(site);
  record.reason = state_.started ? "ready; waits for all shards" : "ready; waits for the start";
  return EnterReady();
}

// Waits until all shards of the run have reported, so that no site enters before a round that one has decided.
Actions RoundTable::EnterReady() {
  if (!state_.seeded || !HeardOfAllShards()) return {};
  if (!state_.started) return StartIfEnough();
  Actions actions;
  for (const SiteId& site : ready_) actions.push_back(EnterNow(site));
  ready_.clear();
  return actions;
}

Actions RoundTable::StartIfEnough() {
  Actions actions;
  if (static_cast<int>(ready_.size()) < rules_.membership.min_sites) return actions;
  state_.started = true;
  std::sort(ready_.begin(), ready_.end());
  for (const SiteId& site : ready_) EnterNow(site);
  // Each receives the names of all, so that they share the data from the first step.
  for (const SiteId& site : ready_) actions.push_back(EnterNow(site));
  ready_.clear();
  return actions;
}

Enter RoundTable::EnterNow(const SiteId& site) {
  SiteRecord& record = state_.sites[site];
  Enter enter{.site = site, .entry = {}};
  enter.entry.step = EntryStep(schedule_, state_.versions);
  enter.entry.versions = state_.versions;
  // With no other site in the run, the joiner has to fill every open round itself, even one that is behind the others.
  for (FragmentId p = 0; p < num_fragments() && synchronous() && NumActive() == 0; ++p) {
    enter.entry.step = std::min(enter.entry.step, schedule_.SendStep(p, state_.versions[p]) - 1);
  }
  for (FragmentId p = 0; p < num_fragments(); ++p) {
    Version first = state_.versions[p];
    if (synchronous()) first = std::max(first, schedule_.FirstBaseAfter(p, enter.entry.step));
    // An earlier stay of this site may have left its contribution in the open round; one per round is enough.
    if (state_.contributions[p].contains(site)) first = std::max(first, state_.versions[p] + 1);
    enter.entry.first_versions.push_back(first);
  }
  record.state = SiteState::kTraining;
  record.reason.clear();
  record.first_versions = enter.entry.first_versions;
  record.starts_anew = false;
  links_[site].entry_step = enter.entry.step;
  enter.entry.sites = ActiveSites();
  enter.entry.stay = record.stay;
  return enter;
}

Actions RoundTable::Tick(int64_t now_ms) {
  SetNow(now_ms);
  Actions actions;
  std::vector<SiteId> expired;
  for (const auto& [site, link] : links_) {
    if (now_ms_ >= link.deadline_ms && !follows()) expired.push_back(site);
  }
  for (const SiteId& site : expired) {
    if (!links_.contains(site)) continue;  // gone with another one
    const Link& link = links_.at(site);
    const bool draining = state_.sites[site].state == SiteState::kDraining;
    Drop(site, WhyLost(draining, link.cut_off, rules_.membership.lease_ms, link.standing_still), actions);
  }
  if (state_.stopped && AnyJoining() && !follows()) {
    std::vector<SiteId> joining;
    for (const auto& [site, record] : state_.sites) {
      if (record.state == SiteState::kJoining) joining.push_back(site);
    }
    for (const SiteId& site : joining) Drop(site, "stopped by an operator", actions);
  }
  CloseRounds(actions);
  return actions;
}

int64_t RoundTable::RanSince(int64_t since_ms) const {
  int64_t ran_ms = now_ms_ - since_ms;
  for (const auto& [from_ms, to_ms] : stalls_ms_) ran_ms -= std::max<int64_t>(0, to_ms - std::max(from_ms, since_ms));
  return std::max<int64_t>(0, ran_ms);
}

void RoundTable::StoodStill(int64_t from_ms, int64_t to_ms) {
  SetNow(to_ms);
  std::erase_if(stalls_ms_, [this](const auto& stall) { return RanSince(stall.second) > rules_.membership.lease_ms; });
  stalls_ms_.emplace_back(from_ms, to_ms);
  for (auto& [site, link] : links_) {
    const int64_t heard_ms = link.deadline_ms - rules_.membership.lease_ms;
    link.deadline_ms += to_ms - std::clamp(heard_ms, from_ms, to_ms);
  }
  pace_.InterruptedAll();  // reports that were delayed meanwhile arrive all at once
}

}  // namespace causeway::server
