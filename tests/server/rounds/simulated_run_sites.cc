// What sites do, and the network between them and the coordinator.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/rounds/simulated_run.h"
#include "tests/server/rounds/table_for_test.h"

namespace causeway::server {

using core::FragmentId;
using core::Version;
using Where = SimulatedSite::Where;

// Asks to join, or to go on with its session; also after a refusal that says when to ask again.
void SimulatedRun::TryJoin(int i) {
  SimulatedSite& site = sites_[i];
  if (site.cut || !site.running) return;
  if (site.where == Where::kOut || site.session.empty()) site.session = absl::StrCat(site.name, "-", draws_++);
  const bool was_in = site.where == Where::kIn;
  const bool from_checkpoint = was_in && !site.stepping && Chance(50);
  JoinRequest request{site.name, site.session, site.Held(), from_checkpoint};
  if (was_in && !InSession(site)) request.session = site.session = absl::StrCat(site.name, "-", draws_++);
  const JoinDecision decision = table_.Join(request, now_ms_);
  site.heard_steps = 0;
  if (!decision.accepted) {
    Expect(!decision.reason.empty(), "a refusal has its reason");
    Take(decision.actions);
    return;  // the heartbeat tries again
  }
  if (decision.resumed) {
    Expect(was_in, "only a site that had entered is resumed");
    Take(decision.actions);
    for (FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
      if (site.unresolved[p]) Send(i, p, site.latency_ms);
    }
    if (!site.stepping) GoOn(i);
    return;
  }
  ++site.life;  // of its stay: what was on its way is forgotten
  site.stepping = false;
  if (was_in) {
    for (FragmentId p = 0; p < schedule_.num_fragments(); ++p) Orphan(site, p);
    Expect(site.ForgetAdmitted(decision.last_admitted), "a joiner is told what it has contributed");
  }
  site.where = Where::kJoining;
  Schedule(2 * site.latency_ms + static_cast<int64_t>(Random(100)), Kind::kReady, i);
  Take(decision.actions);
}

void SimulatedRun::OnReady(int i) {
  SimulatedSite& site = sites_[i];
  if (site.cut) return;  // it asks again
  Take(table_.Ready(site.name, site.session));
}

void SimulatedRun::Report(int i) {
  SimulatedSite& site = sites_[i];
  if (site.cut || site.where == Where::kOut) return;
  Take(table_.Heard(site.name, site.session, site.step, site.completing, now_ms_));
}

bool SimulatedRun::InSession(const SimulatedSite& site) const {
  const auto record = table_.state().sites.find(site.name);
  return record != table_.state().sites.end() && record->second.session == site.session &&
         record->second.state != core::SiteState::kGone;
}

// Whose stream was closed asks again, until the run ends.
void SimulatedRun::OnHeartbeat(int i) {
  if (!sites_[i].running) {
    if (sites_[i].start_ms < 0 || now_ms_ < sites_[i].start_ms) return;
    sites_[i].start_ms = -1;
    sites_[i].running = true;
  }
  if (!sites_[i].cut && !InSession(sites_[i])) {
    if (!ending_) return TryJoin(i);
    LoseWork(sites_[i]);
    sites_[i].where = Where::kOut;
    return;
  }
  if (sites_[i].stepping) return;  // it reports at the end of its step
  Report(i);
  GoOn(i);
}

void SimulatedRun::OnStep(int i) {
  SimulatedSite& site = sites_[i];
  site.stepping = false;
  ++site.step;
  done_ += schedule_.num_fragments();
  for (int64_t& outstanding : site.outstanding) ++outstanding;
  const uint64_t life = site.life;
  if (!site.cut) {
    if (++site.heard_steps >= 2) site.estimated = true;
    Report(i);
  }
  if (life != site.life) return;
  SendWhatIsDue(i);
  GoOn(i);
}

void SimulatedRun::SendWhatIsDue(int i) {
  SimulatedSite& site = sites_[i];
  const bool synchronous = rules_.sync.mode == core::SyncMode::kSynchronous;
  for (FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
    const std::optional<Version> base = site.Due(schedule_, p, synchronous);
    if (!base) continue;
    site.unresolved[p] = {.base = *base, .work = site.outstanding[p]};
    Send(i, p, site.latency_ms + static_cast<int64_t>(Random(Chance(storm_ ? 40 : 10) ? 500 : 20)));
    if (Chance(2)) Send(i, p, site.latency_ms + static_cast<int64_t>(Random(100)));
  }
}

void SimulatedRun::Send(int i, FragmentId p, int64_t in_ms) {
  const SimulatedSite& site = sites_[i];
  const Unresolved& sent = *site.unresolved[p];
  Push({.at_ms = now_ms_ + in_ms,
        .kind = Kind::kArrive,
        .site = i,
        .life = site.life,
        .fragment = p,
        .contribution = {.base = sent.base, .tokens = 8 * sent.work, .steps = sent.work}});
}

void SimulatedRun::OnArrive(const Event& event) {
  SimulatedSite& site = sites_[event.site];
  if (site.cut) return;  // sent again when it is back
  const FragmentId p = event.fragment;
  const absl::Status status = table_.CheckContribution(site.name, site.session, p, event.contribution);
  Event answer = event;
  answer.kind = Kind::kAnswer;
  answer.at_ms = now_ms_ + site.latency_ms;
  answer.answer = status.code();
  Push(answer);
  Expect(!absl::IsInvalidArgument(status), std::string(status.message()));
  if (!status.ok()) return;
  const Version base = event.contribution.base;
  const Key key{site.name, p};
  Expect(site.unresolved[p] && site.unresolved[p]->base == base, "what is admitted is what the site waits for");
  Expect(!waiting_.contains(key), "one unresolved contribution for each site and fragment");
  const auto [last, first] = last_admitted_.try_emplace(key, -1);
  Expect(base > last->second, "no base version is admitted twice");
  if (!failure_.empty()) return;
  last->second = base;
  site.unresolved[p]->admitted = true;
  waiting_[key] = {base, {.work = site.unresolved[p]->work}};
  Take(table_.Admit(site.name, p, event.contribution, site.latency_ms, now_ms_));
}

void SimulatedRun::OnAnswer(const Event& event) {
  SimulatedSite& site = sites_[event.site];
  if (site.cut || site.where != Where::kIn) return;
  auto& unresolved = site.unresolved[event.fragment];
  if (!unresolved || unresolved->base != event.contribution.base) return;
  if (event.answer == absl::StatusCode::kFailedPrecondition) {
    Expect(!unresolved->admitted, "what was admitted is not refused");
    unresolved.reset();  // the outer gradient stays whole
  }
}

bool SimulatedRun::Available(const SimulatedSite& site, FragmentId p) const {
  const Version base = site.versions[p];
  return !site.cut && base < static_cast<Version>(closed_[p].size()) &&
         closed_[p][base].at_ms + site.latency_ms <= now_ms_;
}

void SimulatedRun::GoOn(int i) {
  SimulatedSite& site = sites_[i];
  if (site.where != Where::kIn || site.stepping) return;
  const bool synchronous = rules_.sync.mode == core::SyncMode::kSynchronous;
  for (FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
    while (Available(site, p) &&
           (!synchronous || site.completing || schedule_.ApplyStep(p, site.versions[p]) <= site.step)) {
      site.Apply(p, closed_[p][site.versions[p]].contributors);
    }
    if (synchronous && !site.completing && schedule_.ApplyStep(p, site.versions[p]) <= site.step) return;  // it waits
  }
  if (!site.cut && (site.draining || (site.target > 0 && site.step >= site.target))) {
    if (!site.completing) {
      site.completing = true;
      Report(i);
      return;
    }
    if (site.AnyUnresolved()) return;
    const bool finished = !site.draining;
    LoseWork(site);
    site.where = Where::kOut;
    ++site.life;
    site.running = false;
    Take(table_.Leave(site.name, site.session, finished, "leaves", now_ms_));
    if (!ending_ && (peace_ || Chance(85))) site.start_ms = now_ms_ + static_cast<int64_t>(Random(1000));
    return;
  }
  if (table_.held()) return;
  site.stepping = true;
  Schedule(site.step_ms * site.straggle, Kind::kStep, i);
}

void SimulatedRun::Orphan(const SimulatedSite& site, FragmentId p) {
  if (const auto waiting = waiting_.find({site.name, p}); waiting != waiting_.end()) {
    waiting->second.second.orphan = true;
  }
}

void SimulatedRun::LoseWork(SimulatedSite& site) {
  for (size_t p = 0; p < site.outstanding.size(); ++p) {
    lost_ += site.outstanding[p];
    if (site.unresolved[p] && site.unresolved[p]->admitted) lost_ -= site.unresolved[p]->work;
    Orphan(site, static_cast<FragmentId>(p));
  }
  std::fill(site.outstanding.begin(), site.outstanding.end(), 0);
  std::fill(site.unresolved.begin(), site.unresolved.end(), std::nullopt);
}

}  // namespace causeway::server
