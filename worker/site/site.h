// A site's side of the protocol, for whoever trains: joins the run, sends outer gradients and applies updates when the
// schedule says so, and lets the step loop wait for nothing but an update that is due (synchronous mode), a pause, or
// its place in the run.
//
//   step thread    Join ─► step 1, AfterStep(1) ─► step 2, AfterStep(2) ─► … ─► CompleteRounds ─► Leave
//                    │          │ events                                 ▲
//                    ▼          ▼                                        │ θ moves here alone
//                  SiteRules ─► actions ─► Movers (copies, arithmetic), link, step thread
//                    ▲
//   link threads     └── welcomes, verdicts, downloads
//
// θ is reached through a ParameterStore alone, and moved on the thread that calls Join, AfterStep and CompleteRounds.
// Each of these takes a timeout, after which it returns DEADLINE_EXCEEDED with nothing lost: the same call goes on
// waiting. No call ends the process. Other calls may come from any thread, unless they say otherwise.
//
// Statuses: PERMISSION_DENIED refused by the coordinator, UNAVAILABLE not reached in time, CANCELLED asked to stop,
// DATA_LOSS a value is not finite (named), INTERNAL the coordinator broke the protocol. Source: docs/architecture.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"
#include "transport/coordinator_link.h"
#include "worker/site/heartbeat.h"
#include "worker/site/site_checkpoint.h"
#include "worker/site/site_exchange.h"
#include "worker/site/site_report.h"
#include "worker/site/step_watch.h"

namespace causeway::worker {

class Site {
 public:
  using Timeout = std::chrono::nanoseconds;
  static constexpr Timeout kForEver = std::chrono::hours(24 * 365);

  // `store` has the manifest's tensors. It, `link` and `clock` outlive the site.
  Site(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest, replica::ParameterStore* store,
       transport::CoordinatorLink* link, const core::Clock& clock = core::SystemClock());
  ~Site();

  // Before Join: what the site trains and evaluates on, as the coordinator is to know it. Nothing where it does not
  // say.
  void SetData(const core::SiteData& data) { exchange_.SetData(data); }
  // Before Join: goes on from a checkpoint; θ was restored already.
  void Restore(SiteCheckpoint checkpoint) { exchange_.Restore(std::move(checkpoint)); }
  // Before Join: θ holds no values that a run could begin with. The site takes those of the run, and fails with this
  // status where it is the one that should supply them.
  void HasNoInitialValues(absl::Status why) { exchange_.HasNoInitialValues(std::move(why)); }
  // Called with a copy of the anchors whenever it is this site's turn to evaluate them, on the task thread: it should
  // only pass the copy on. Before Join.
  void SetEvaluate(std::function<void(AnchorCopy)> evaluate) { exchange_.SetEvaluate(std::move(evaluate)); }

  // Says that training waits or stands still; its timeout is 600 s unless it is set before Join. Any thread.
  StepWatch& watch() { return watch_; }

  // ---- The step thread ----

  // Takes part: returns, when the site has its anchors and its place and the run is not paused, the step that it stands
  // at, as if just done.
  absl::StatusOr<core::Step> Join(Timeout timeout = kForEver);
  // What the schedule wants at the end of inner step t, and waiting while the run is paused. Returns t, or, when the
  // site had been dropped from the run and has joined anew, the step to go on from.
  absl::StatusOr<core::Step> AfterStep(core::Step t, Timeout timeout = kForEver);
  // Waits for the rounds that are open; nothing mixes into θ any more. ABORTED: dropped meanwhile; Join again.
  absl::Status CompleteRounds(Timeout timeout = kForEver);
  // Calls `save` with what a process that starts again needs, at the end of a step, and returns when it has. θ and the
  // inner optimizer are the caller's. Runs on the task thread, while no array changes. False, and nothing is saved,
  // where θ is not W and what was trained: before the site has its place, and once it only completes rounds.
  bool Checkpoint(const std::function<void(const SiteCheckpoint&)>& save) { return exchange_.Checkpoint(save); }
  // Waits for the verdicts on what was sent.
  absl::Status DrainUploads(Timeout timeout = std::chrono::seconds(10));
  // The end of the site's part in the run, said to the coordinator. No call follows.
  void Leave(bool finished, const std::string& reason);

  // Who shares the data, as of the last update in θ.
  std::vector<core::SiteId> sites() const;
  int64_t stays() const;                  // how often it has entered the run; θ and the step were set each time
  core::Version CompletedRounds() const;  // that θ has, of all fragments: checkpoints are counted in them
  const core::FragmentMap& map() const { return exchange_.map(); }  // after Join

  // ---- Any thread ----

  void RequestStop();           // calls that wait return CANCELLED
  bool stop_requested() const;  // also by the coordinator
  // Calls `take` once with what the anchors are when its turn has come, on the task thread. After Join.
  void PostAnchorCopy(std::function<void(AnchorCopy)> take) { exchange_.movers()->PostAnchorCopy(std::move(take)); }
  void FinishTasks();  // returns when what was posted has run
  void Report(const TrainingReport& report);
  void ReportEval(double loss, std::vector<core::Version> versions);
  core::Progress GetProgress() { return exchange_.GetProgress(); }  // what the coordinator is told
  ExchangeTotals GetTotals() const { return exchange_.GetTotals(); }

 private:
  using Deadline = SiteExchange::Deadline;

  void SendProgress();

  const core::RunConfig config_;
  const core::Manifest manifest_;
  transport::CoordinatorLink* const link_;
  const core::Clock& clock_;
  bool joining_ = false;  // the step thread's: it has no place yet, also between two calls
  SiteExchange exchange_;
  StepWatch watch_;
  Heartbeat heart_;
};

}  // namespace causeway::worker
