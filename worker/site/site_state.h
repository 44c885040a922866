// What the rules of a site remember: a plain value, and the questions that all of them ask it.
//
//   Outside ─welcome─► Unsettled ─► Anchoring ─► Ready ─entry─► CatchingUp ─► Entering ─► Training ─► Completing
//                          ▲                                                     │            │
//                          └────────── a welcome that begins a new stay ◄── Lost ◄────────────┘
//
// Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/data_fingerprint.h"
#include "core/membership.h"
#include "core/run_config.h"
#include "worker/site/fragment_rules.h"
#include "worker/site/sync_delay.h"

namespace causeway::worker {

enum class Stage {
  kOutside,     // not welcomed yet
  kUnsettled,   // welcomed to a new stay; the step thread has not come, or what an earlier stay began is not over
  kAnchoring,   // gets the anchors, or follows the updates from those that it has
  kReady,       // has them, and waits for its place in the schedule
  kCatchingUp,  // has its place, and waits for the versions of it
  kEntering,    // takes it: θ becomes what it is to be
  kTraining,
  kLost,        // has to join anew and waits for the welcome
  kCompleting,  // waits for the rounds that are open; θ stays as it is
  kCompleted,
};
const char* StageName(Stage stage);

// One stay in the run, from joining to gone.
struct Stay {
  int64_t number = 0;    // as the site counts them
  int64_t welcomed = 0;  // as the coordinator does
  Stage stage = Stage::kOutside;
  bool resumes = false;     // goes on from a checkpoint
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

// What is counted for others.
struct SiteCounts {
  int64_t entered = 0;  // stays
  int64_t sent = 0;
  int64_t merged = 0;
  int64_t skipped = 0;  // due while an earlier one was unresolved
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
  std::optional<SiteFacts> restored;   // of a checkpoint, until the first welcome
  std::string lineage;                 // of the coordinator's state, as the last welcome said
  absl::Status initial_values;         // OK, or why the site has none to offer or supply
  TrainedAmount trained;               // in all
  core::Step step = 0;                 // that was done last
  std::optional<core::Step> reported;  // by the step thread, last since the site has this place
  std::vector<core::SiteId> sites;     // that share the data
  core::SiteData data;                 // what it says of its own when it joins
  SiteCounts counts;
  SyncDelay delay;
  std::optional<int64_t> stepped_us;  // the end of the last step; none: it says nothing about the next one
  double stalled_at_step_s = 0;       // counts.stall_s at that time
  bool held = false;                  // by an operator
  int sets_pending = 0;               // fragments whose θ the step thread sets to W, before the site enters
  bool stopping = false;              // its owner asked it to stop
  absl::Status failure;
  int64_t now_us = 0;
  SiteActions actions;  // of the event that is handled

  // Whether it is this site's turn to evaluate: where each has data of its own, it is each one's.
  bool MayEvaluate(bool is_first) const { return is_first || config.data.mode == core::DataMode::kOwn; }
  bool synchronous() const { return config.sync.mode == core::SyncMode::kSynchronous; }
  bool joining() const { return stay.stage >= Stage::kAnchoring && stay.stage <= Stage::kCatchingUp; }
  bool entered() const {
    return stay.stage == Stage::kTraining || stay.stage == Stage::kCompleting || stay.stage == Stage::kCompleted;
  }
  core::Step ApplyStep(const FragmentRules& fragment) const {
    return schedule.SendStep(fragment.id(), fragment.facts().applied) + fragment.facts().delay;
  }
  void Do(SiteAction action) { actions.push_back(std::move(action)); }
  void LosePlace() {  // and take a new one
    stay.stage = Stage::kLost;
    Do(action::Rejoin{});
  }
  void Fail(const absl::Status& status) {
    if (failure.ok()) failure = status;
  }
  void ChooseDelay(FragmentRules& fragment) const;
};

}  // namespace causeway::worker
