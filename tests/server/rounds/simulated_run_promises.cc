// What the table decided, and whether it kept its promises.
#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/server/rounds/simulated_run.h"

namespace causeway::server {

using core::FragmentId;

void SimulatedRun::Take(const Actions& actions) {
  for (const Action& action : actions) {
    std::visit([this](const auto& chosen) { Take(chosen); }, action);
  }
}

void SimulatedRun::Take(const RequestSeed& action) {
  TellOnStream(IndexOf(action.site), worker::event::SeedRequested{});
}

void SimulatedRun::Take(const Enter& action) {
  SimulatedSite& site = sites_[IndexOf(action.site)];
  site.draining = site.completing = false;
  site.heard_steps = 0;
  TellOnStream(IndexOf(action.site), worker::event::EntryGiven{action.entry});
  if (draining_all_) DrainSite(site);
}

void SimulatedRun::Take(const Dropped& action) {
  Expect(!action.reason.empty(), "a drop has its reason");
  ++drops_[action.reason];
  SimulatedSite& site = sites_[IndexOf(action.site)];
  site.heard_steps = 0;
  site.estimated = site.connected = false;  // its stream is closed
}

void SimulatedRun::Take(const CloseRound& close) {
  const FragmentId p = close.fragment;
  ++rounds_;
  Expect(!close.reason.empty(), "a round that closes has its reason");
  Expect(!close.contributors.empty(), "a round has contributors");
  Expect(close.base == static_cast<core::Version>(closed_[p].size()), "versions rise by one");
  const bool synchronous = rules_.sync.mode == core::SyncMode::kSynchronous;
  const int64_t quorum = rules_.membership.min_quorum;
  const core::RoundState& state = table_.state();
  bool ending = state.finished || state.stopped;
  for (const CloseRound::Contributor& contributor : close.contributors) {
    SimulatedSite& site = sites_[IndexOf(contributor.site)];
    const int64_t behind = close.base - contributor.base;
    Expect(behind >= 0 && behind <= (synchronous ? 0 : rules_.membership.max_staleness), "staleness is bounded");
    Expect(contributor.weight > 0, "weights are above 0");
    ending = ending || site.completing || site.draining;
    const auto waiting = waiting_.find({contributor.site, p});
    const bool once = waiting != waiting_.end() && waiting->second.first == contributor.base;
    Expect(once, "what is merged was admitted, and not merged before");
    if (!once) return;
    merged_ += waiting->second.second.work;
    if (!waiting->second.second.orphan) site.fragments[p].sent->merged = true;
    waiting_.erase(waiting);
  }
  Expect(std::is_sorted(close.contributors.begin(), close.contributors.end(),
                        [](const auto& a, const auto& b) { return a.site < b.site; }),
         "contributors are in bytewise order");
  Expect(ending || synchronous || static_cast<int64_t>(close.contributors.size()) >= quorum,
         absl::StrCat("a round has its quorum, and not: ", close.reason));
  Expect(ending || quorum == 1 || static_cast<int64_t>(close.sites.size()) >= quorum, "enough sites are active");
  Expect(!state.paused, "no round closes while the run is paused");
  if (!synchronous) CheckDistance(close);
  closed_[p].push_back({now_ms_, close.contributors});
  closed_ms_[p] = last_closed_ms_ = now_ms_;
  for (size_t i = 0; i < sites_.size(); ++i) Deliver(static_cast<int>(i), p, sites_[i].latency_ms);
}

void SimulatedRun::CheckDistance(const CloseRound& close) {
  int64_t fastest_ms = -1;
  bool estimated = false;
  bool trains = false;
  for (const core::SiteId& name : close.sites) {
    const SimulatedSite& site = sites_[IndexOf(name)];
    fastest_ms = fastest_ms < 0 ? site.step_ms : std::min(fastest_ms, site.step_ms);
    estimated = estimated || site.estimated;
    trains = trains || !site.completing;
  }
  if (!estimated || !trains || last_closed_ms_ < 0) return;
  const double distance_ms = kDistanceShare * rules_.sync.sync_every * fastest_ms;
  const double since_any = now_ms_ - last_closed_ms_;
  Expect(since_any >= distance_ms / schedule_.num_fragments() - 1e-6,
         absl::StrCat("two rounds keep their distance: ", since_any, " ms"));
  const int64_t same = closed_ms_[close.fragment];
  Expect(same < 0 || now_ms_ - same >= distance_ms - 1e-6, "two rounds of one fragment keep their distance");
}

void SimulatedRun::CheckPromises() {
  const core::RoundState& state = table_.state();
  int64_t outstanding = 0;
  for (const SimulatedSite& site : sites_) {
    for (const SimulatedFragment& fragment : site.fragments) {
      outstanding += fragment.outstanding;
      if (fragment.sent && fragment.sent->merged) outstanding -= fragment.sent->work;
    }
  }
  for (const auto& [key, waiting] : waiting_) {
    if (waiting.second.orphan) outstanding += waiting.second.work;
    const auto& [site, p] = key;
    const auto found = state.contributions[p].find(site);
    Expect(found != state.contributions[p].end() && found->second.base == waiting.first,
           "an admitted contribution waits until it is merged");
  }
  if (done_ != merged_ + outstanding + lost_) {
    Expect(false, absl::StrCat("work done ", done_, " is merged ", merged_, ", outstanding ", outstanding, " or lost ",
                               lost_));
  }
  size_t contributions = 0;
  for (FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
    contributions += state.contributions[p].size();
    Expect(state.versions[p] == static_cast<core::Version>(closed_[p].size()), "versions are the rounds decided");
  }
  Expect(contributions == waiting_.size(), "what waits was admitted");
  if (table_.run_state() != RunState::kTraining) {
    Expect(!table_.Reason().empty(), "a run that does not train says why");
  } else if (pushed_ % 16 == 0) {
    for (FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
      Expect(state.contributions[p].empty() == table_.RoundReason(p).empty(), "an open round says what it waits for");
    }
  }
}

}  // namespace causeway::server
