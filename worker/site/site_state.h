// The state of a site's rules: a plain value, with the queries that all rules share.
//
//   Outside ─welcome─► Unsettled ─► Anchoring ─► Ready ─entry─► CatchingUp ─► Entering ─► Training ─► Completing
//                          ▲                                                     │            │
//                          └────────── a welcome that begins a new stay ◄── Lost ◄────────────┘
//
// Pure; one owner at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/data_fingerprint.h"
#include "core/membership.h"
#include "core/run_config.h"
#include "core/schedule.h"
#include "replica/replica.h"
#include "transport/coordinator_link.h"
#include "worker/site/fragment_rules.h"
#include "worker/site/site_checkpoint.h"

namespace causeway::worker {

// The automatic delay τ of a site (fragment_sync_delay: auto): the smallest number of inner steps between sending a
// fragment and needing its update within which all updates of the last rounds arrived.
//
//   SEND ── encode, up ──► admitted ── wait for others ──► merge, down, outer step ──► update in W ── slack ──► APPLY
//
//   time of an update = t + min(wait, 3 t), where t excludes the wait
//   τ = ceil(1.1 · longest of the last times / step time) + 1,  1 ≤ τ < H
//
// Too large a τ costs a little of the fragment's newest local steps; too small a τ makes the site wait. So the longest
// time of the last three rounds over all fragments counts, since anything that delays one of them (a lost packet, a
// slow site) affects the others as well; while nothing is measured, the largest τ is used. A slower link takes effect
// at once, a faster one after three rounds. The choice at a SEND holds for that round.
//
// The wait counts only as far as it may be chance, such as a delay of other sites' transfers. A longer wait means that
// another site computes more slowly than we do, and no delay helps: covering it would only let us run further ahead,
// wait longer and ask for more. Source: Streaming DiLoCo (arXiv 2501.18512, section 2.2) has τ as a constant; its
// choice from measurement is ours. One owner at a time.
class SyncDelay {
 public:
  SyncDelay(core::Step sync_every, int num_fragments);

  struct Choice {
    core::Step delay = 0;
    std::string reason;  // "updates take 812 ms, steps 25.0 ms"
  };

  void Stepped(double seconds);  // the time of an inner step, without waiting for updates
  // `latency_s` counts from the send; `waited_s` is the part of it spent admitted, waiting for other sites.
  void Arrived(double latency_s, double waited_s);
  Choice Choose() const;

 private:
  const core::Step sync_every_;
  double step_s_ = 0;  // exponential average
  const size_t kept_;
  std::deque<double> times_;  // in seconds, newest last
};

enum class Stage {
  kOutside,     // not welcomed yet
  kUnsettled,   // welcomed to a new stay; the step thread is not ready, or something from an earlier stay is unfinished
  kAnchoring,   // fetches the anchors, or applies updates to those that it has
  kReady,       // has the anchors, and waits for its place in the schedule
  kCatchingUp,  // has its place, and waits for the versions that go with it
  kEntering,    // takes its place: θ is set accordingly
  kTraining,
  kLost,        // must join anew and waits for the welcome
  kCompleting,  // waits for the open rounds; θ stays as it is
  kCompleted,
};
const char* StageName(Stage stage);

// One stay in the run, from joining to gone.
struct Stay {
  int64_t number = 0;    // the stay's number, by the site's count
  int64_t welcomed = 0;  // the stay's number, by the coordinator's count
  Stage stage = Stage::kOutside;
  bool resumes = false;     // continues from a checkpoint
  bool waited_for = false;  // the step thread waits for its place
  bool seed_requested = false;
  std::optional<int64_t> said_ready_us;
  std::optional<core::Entry> entry;
  std::vector<core::Version> last_admitted;
};

// The end of an inner step, until the step thread may go on.
struct StepEnd {
  core::Step step = 0;
  bool sends_due = false;  // quorum mode: contributions are made when θ stands still
  std::optional<int64_t> stalled_since_us;
};

// Counters for reports.
struct SiteCounts {
  int64_t entered = 0;  // number of stays
  int64_t sent = 0;
  int64_t merged = 0;
  int64_t skipped = 0;  // due while an earlier contribution was unresolved
  double stall_s = 0;   // since it entered
};

struct SiteState {
  SiteState(const core::RunConfig& run, core::SiteId name)
      : config(run),
        site(std::move(name)),
        schedule(run.sync.Schedule()),
        delay(run.sync.sync_every, run.sync.map_fragments()) {}

  const core::RunConfig config;
  const core::SiteId site;
  const core::FragmentSchedule schedule;
  std::vector<FragmentRules> fragments;
  Stay stay;
  std::optional<StepEnd> end;
  std::optional<SiteFacts> restored;   // facts of a checkpoint, until the first welcome
  std::string lineage;                 // the lineage of the coordinator's state, from the last welcome
  absl::Status initial_values;         // OK, or why the site has none to offer or supply
  TrainedAmount trained;               // the site's total
  core::Step step = 0;                 // the last one done
  std::optional<core::Step> reported;  // the step reported last since the site took this place
  std::vector<core::SiteId> sites;     // the sites that share the data
  core::SiteData data;                 // the site's own, declared when it joins
  SiteCounts counts;
  SyncDelay delay;
  std::optional<int64_t> stepped_us;  // end of the last step; none: it says nothing about the next one
  double stalled_at_step_s = 0;       // counts.stall_s at that time
  bool held = false;                  // the run is held: the site takes no further step
  int sets_pending = 0;               // fragments whose θ the step thread has yet to set to W before the site enters
  bool stopping = false;              // the site's owner requested a stop
  absl::Status failure;
  int64_t now_us = 0;
  SiteActions actions;  // the actions of the current event

  // Whether it is this site's turn to evaluate: where each site has its own data, every site evaluates.
  bool MayEvaluate(bool is_first) const { return is_first || config.data.mode == core::DataMode::kOwn; }
  bool synchronous() const { return config.sync.mode == core::SyncMode::kSynchronous; }
  bool joining() const { return stay.stage >= Stage::kAnchoring && stay.stage <= Stage::kCatchingUp; }
  bool entered() const {
    return stay.stage == Stage::kTraining || stay.stage == Stage::kCompleting || stay.stage == Stage::kCompleted;
  }
  // The tokens of all sites in contributions that were merged, and its own since then: the mean over fragments. Sites
  // differ in it by what they have trained since their last merged contributions.
  int64_t RunTokens() const {
    double sum = 0;
    for (const FragmentRules& fragment : fragments) {
      const FragmentFacts& facts = fragment.facts();
      sum += static_cast<double>(facts.run_tokens + trained.tokens - facts.merged_amount.tokens);
    }
    return fragments.empty() ? 0 : static_cast<int64_t>(sum / static_cast<double>(fragments.size()));
  }
  core::Step ApplyStep(const FragmentRules& fragment) const {
    return schedule.SendStep(fragment.id(), fragment.facts().applied) + fragment.facts().delay;
  }
  void Do(SiteAction action) { actions.push_back(std::move(action)); }
  void LosePlace() {  // asks for a new place, unless the site is about to leave, which its present stream says
    stay.stage = Stage::kLost;
    if (!stopping) Do(action::Rejoin{});
  }
  void Fail(const absl::Status& status) {
    if (failure.ok()) failure = status;
  }
  void ChooseDelay(FragmentRules& fragment) const;
};

// W and v of each fragment that a site holds, as it presents them to a coordinator that rebuilds its state. Pure.

transport::HeldValues HeldValuesOf(core::Version version, const replica::ReplicaArrays& arrays);

// The same for a process that has not been welcomed since it restarted.
std::vector<core::HeldFragment> HeldFragmentsOf(const SiteCheckpoint& checkpoint);

}  // namespace causeway::worker
