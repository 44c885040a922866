// A site's side of the protocol, for a training loop: joins the run, sends outer gradients and applies updates when the
// schedule says so, and makes the step loop wait only for an update that is due (synchronous mode), a pause, or its
// place in the run.
//
//   step thread    Join ─► step 1, AfterStep(1) ─► step 2, AfterStep(2) ─► … ─► CompleteRounds ─► Leave
//                    │          │ events                                 ▲
//                    ▼          ▼                                        │ θ moves here alone
//                  SiteRules ─► actions ─► Movers (copies, arithmetic), link, step thread
//                    ▲
//   link threads     └── welcomes, verdicts, downloads
//
// θ is accessed only through a ParameterStore, and moved on the thread that calls Join, AfterStep and CompleteRounds.
// Each of these takes a timeout, after which it returns DEADLINE_EXCEEDED with nothing lost: repeating the call goes on
// waiting. No call ends the process. The other calls may come from any thread, unless noted otherwise.
//
// Statuses: PERMISSION_DENIED refused by the coordinator, UNAVAILABLE not reached in time, CANCELLED stop requested,
// DATA_LOSS a value is not finite (named), INTERNAL the coordinator broke the protocol. Source: docs/architecture.md.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/progress.h"
#include "core/run_settings.h"
#include "core/thread.h"
#include "replica/parameter_store.h"
#include "transport/coordinator_link.h"
#include "worker/site/site_checkpoint.h"
#include "worker/site/site_exchange.h"
#include "worker/site/site_report.h"

namespace causeway::worker {

// Detects that a site's training stands still, so that its lease depends on its steps and not on the life of its
// process.
//
//   step thread   Enter ─► (in a call of the site: it waits for what is known) ─► Return ─► the program trains
//   any thread    Waits("evaluation") … Waits("")        HasRanks({…, "rank 3 of 8 (host) ended"})
//   heartbeat     Look ─► a report ─► … ─► one report that says why ─► silence, until the next step
//
// Training stands still when the program has not come back for `timeout` and is in no known wait, or when one of
// the ranks says so. The first step after the site has joined may take ten times as long: programs compile in it.
// Thread-safe.
class StepWatch {
 public:
  // The heartbeat's next move.
  enum class Say { kGoesOn, kStandsStill, kNothing };

  StepWatch(double timeout_s, const core::Clock& clock) : timeout_s_(timeout_s), clock_(clock) {}

  void SetTimeout(double timeout_s);
  void Enter();
  void Return(bool stepped);
  void Waits(const std::string& what);             // "": the wait is over
  void HasRanks(const core::RankProgress& ranks);  // `ranks` has the reason why they stand still, if one knows it

  // To be called once per heartbeat: fills in the report on the ranks. Returns kStandsStill once, and kNothing from
  // then on.
  Say Look(core::RankProgress& ranks);

 private:
  std::string WhyStill() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  core::Mutex mutex_;
  double timeout_s_ ABSL_GUARDED_BY(mutex_);
  const core::Clock& clock_;
  bool inside_ ABSL_GUARDED_BY(mutex_) = true;  // also before the site has joined
  bool first_ ABSL_GUARDED_BY(mutex_) = true;
  core::Clock::TimePoint since_ ABSL_GUARDED_BY(mutex_);
  std::string waits_ ABSL_GUARDED_BY(mutex_);
  core::RankProgress ranks_ ABSL_GUARDED_BY(mutex_);
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
};

// Enter and Return around a call of the site.
class InSite {
 public:
  InSite(StepWatch& watch, bool steps) : watch_(watch), steps_(steps) { watch_.Enter(); }
  ~InSite() { watch_.Return(steps_); }

 private:
  StepWatch& watch_;
  const bool steps_;
};

// Reports to the coordinator a few times per lease, on a thread of its own, however busy the other threads are.
class Heartbeat {
 public:
  ~Heartbeat() { Stop(); }

  // Calls `beat` often enough that one lost report does not cost the lease, which may change. To be called once.
  void Start(std::function<int64_t()> lease_ms, std::function<void()> beat);
  bool started() const { return thread_.joinable(); }
  void Stop();  // `beat` is not called after it

 private:
  core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

class Site {
 public:
  using Timeout = std::chrono::nanoseconds;
  static constexpr Timeout kForEver = std::chrono::hours(24 * 365);

  // `store` has the manifest's tensors. It, `link` and `clock` outlive the site.
  Site(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest, replica::ParameterStore* store,
       transport::CoordinatorLink* link, const core::Clock& clock = core::SystemClock());
  ~Site();

  // Before Join: declares to the coordinator what the site trains and evaluates on; empty where the site declares
  // nothing.
  void SetData(const core::SiteData& data) { exchange_.SetData(data); }
  // Before Join: goes on from a checkpoint; θ was restored already.
  void Restore(SiteCheckpoint checkpoint) { exchange_.Restore(std::move(checkpoint)); }
  // Before Join: θ holds no initial values for a run. The site takes the run's, and fails with this status if it would
  // have to supply them.
  void HasNoInitialValues(absl::Status why) { exchange_.HasNoInitialValues(std::move(why)); }
  // Before Join: sets the function that is called, on the task thread, with a copy of the anchors whenever it is this
  // site's turn to evaluate them. It should only pass the copy on.
  void SetEvaluate(std::function<void(AnchorCopy)> evaluate) { exchange_.SetEvaluate(std::move(evaluate)); }

  // Knows whether training waits or stands still; its timeout is 600 s unless set before Join. Any thread.
  StepWatch& watch() { return watch_; }

  // ---- The step thread ----

  // Joins the run: returns, when the site has its anchors and its place and the run is not paused, the step at which
  // the site stands, as if just done.
  absl::StatusOr<core::Step> Join(Timeout timeout = kForEver);
  // Does what the schedule asks for at the end of inner step t, and waits while the run is paused. Returns t or, if the
  // site was dropped from the run and has joined anew, the step to continue from.
  absl::StatusOr<core::Step> AfterStep(core::Step t, Timeout timeout = kForEver);
  // Waits for the open rounds; nothing is mixed into θ any more. ABORTED: dropped meanwhile; call Join again.
  absl::Status CompleteRounds(Timeout timeout = kForEver);
  // Calls `save`, at the end of a step, with everything that a restarted process needs, and returns when `save` has.
  // Saving θ and the inner optimizer is up to the caller. Runs on the task thread, while no array changes. Returns
  // false and saves nothing where θ is not W plus the local training: before the site has its place, and once it only
  // completes rounds.
  bool Checkpoint(const std::function<void(const SiteCheckpoint&)>& save) { return exchange_.Checkpoint(save); }
  // Waits for the verdicts on all contributions sent.
  absl::Status DrainUploads(Timeout timeout = std::chrono::seconds(10));
  // Tells the coordinator that the site leaves the run. No call may follow.
  void Leave(bool finished, const std::string& reason);

  // The run's settings, with the changes that the coordinator has announced. Any thread.
  const core::RunSettings& settings() const { return settings_; }
  // The sites that share the data, as of the last update in θ.
  std::vector<core::SiteId> sites() const;
  int64_t stays() const;                  // how often it has entered the run; θ and the step were set each time
  core::Version CompletedRounds() const;  // completed in θ by all fragments: the unit in which checkpoints are counted
  const core::FragmentMap& map() const { return exchange_.map(); }  // after Join

  // ---- Any thread ----

  void RequestStop();           // calls that wait return CANCELLED
  bool stop_requested() const;  // whether this process or the coordinator requested it
  // Calls `take` once, on the task thread, with the anchors as they are at that time. After Join.
  void PostAnchorCopy(std::function<void(AnchorCopy)> take) { exchange_.movers()->PostAnchorCopy(std::move(take)); }
  void FinishTasks();  // returns when all posted tasks have run
  void ReportWith(const std::function<void(SiteReport&)>& note) { exchange_.Report(note); }
  core::Progress GetProgress() { return exchange_.GetProgress(); }  // the progress as reported to the coordinator
  ExchangeTotals GetTotals() const { return exchange_.GetTotals(); }

 private:
  using Deadline = SiteExchange::Deadline;

  void SendProgress();

  core::RunSettings settings_;
  const core::Manifest manifest_;
  transport::CoordinatorLink* const link_;
  const core::Clock& clock_;
  bool joining_ = false;  // owned by the step thread: the site has no place yet, also between two calls
  SiteExchange exchange_;
  StepWatch watch_;
  Heartbeat heart_;
};

}  // namespace causeway::worker
