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

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"
#include "transport/coordinator_link.h"
#include "worker/site/heartbeat.h"
#include "worker/site/movers.h"
#include "worker/site/site_checkpoint.h"
#include "worker/site/site_report.h"
#include "worker/site/site_rules.h"
#include "worker/site/site_transfers.h"

namespace causeway::worker {

class Site final : public transport::LinkListener, public MoverListener, public TransferListener {
 public:
  using Timeout = std::chrono::nanoseconds;
  static constexpr Timeout kForEver = std::chrono::hours(24 * 365);

  // `store` has the manifest's tensors. It, `link` and `clock` outlive the site.
  Site(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest, replica::ParameterStore* store,
       transport::CoordinatorLink* link, const core::Clock& clock = core::SystemClock());
  ~Site() override;

  // Before Join: goes on from a checkpoint; θ was restored already.
  void Restore(SiteCheckpoint checkpoint);
  // Called with a copy of the anchors whenever it is this site's turn to evaluate them, on the task thread: it should
  // only pass the copy on. Before Join.
  void SetEvaluate(std::function<void(AnchorCopy)> evaluate) { evaluate_ = std::move(evaluate); }

  // ---- The step thread ----

  // Takes part: returns, when the site has its anchors and its place, the step that it stands at, as if just done.
  absl::StatusOr<core::Step> Join(Timeout timeout = kForEver);
  // What the schedule wants at the end of inner step t, and waiting while the run is paused. Returns t, or, when the
  // site had been dropped from the run and has joined anew, the step to go on from.
  absl::StatusOr<core::Step> AfterStep(core::Step t, Timeout timeout = kForEver);
  // Waits for the rounds that are open; nothing mixes into θ any more. ABORTED: dropped meanwhile; Join again.
  absl::Status CompleteRounds(Timeout timeout = kForEver);
  // Calls `save` with what a process that starts again needs, at the end of a step, and returns when it has. θ and the
  // inner optimizer are the caller's. Runs on the task thread, while no array changes. False, and nothing is saved,
  // where θ is not W and what was trained: before the site has its place, and once it only completes rounds.
  bool Checkpoint(const std::function<void(const SiteCheckpoint&)>& save);
  // Waits for the verdicts on what was sent. DEADLINE_EXCEEDED after 10 s.
  absl::Status DrainUploads();
  // The end of the site's part in the run, said to the coordinator. No call follows.
  void Leave(bool finished, const std::string& reason);

  // Who shares the data, as of the last update in θ.
  std::vector<core::SiteId> sites() const;
  int64_t stays() const;                  // how often it has entered the run; θ and the step were set each time
  core::Version CompletedRounds() const;  // that θ has, of all fragments: checkpoints are counted in them
  const core::FragmentMap& map() const { return *map_; }  // after Join

  // ---- Any thread ----

  void RequestStop();  // calls that wait return CANCELLED
  bool stop_requested() const { return stop_requested_; }
  // Calls `take` once with what the anchors are when its turn has come, on the task thread.
  void PostAnchorCopy(std::function<void(AnchorCopy)> take) { movers_->PostAnchorCopy(std::move(take)); }
  void FinishTasks();  // returns when what was posted has run
  void Report(const TrainingReport& report);
  void ReportEval(double loss, std::vector<core::Version> versions);
  core::Progress GetProgress();  // what the coordinator is told

  // ---- transport::LinkListener ----
  transport::Standing GetStanding() override;
  void OnWelcome(const transport::Welcome& welcome) override;
  void OnSeedRequest() override { Dispatch(event::SeedRequested{}); }
  void OnEntry(const core::Entry& entry) override { Dispatch(event::EntryGiven{entry}); }
  void OnNotice(const std::string& reason) override;
  void OnDrain(const std::string& reason) override;
  void OnHold(bool held) override { Dispatch(event::Held{held}); }
  void OnFailure(const absl::Status& status) override { Dispatch(event::Failed{status}); }

 private:
  using Deadline = core::Clock::TimePoint;
  // What is done about an event when the lock is free again: the link may call back at once.
  using Effects = std::vector<std::function<void()>>;

  void OnCopied(core::FragmentId p) override { Dispatch(event::Copied{p}); }
  void OnEncoded(core::FragmentId p, Chunks chunks) override;
  void OnAnchorPlaced(core::FragmentId p, const core::AnchorDigest& anchor) override;
  void OnUpdateTaken(core::FragmentId p, const core::AnchorDigest& anchor, const std::string& mismatch) override;
  void OnMoverFailed(const absl::Status& status) override { Dispatch(event::Failed{status}); }
  void OnBegan(const event::FetchBegan& began) override { Dispatch(began); }
  void OnFetched(const event::Fetched& fetched, std::shared_ptr<const Payload> payload) override;
  void OnVerdict(const event::VerdictGiven& given) override;
  void OnTransferFailed(const absl::Status& status) override { Dispatch(event::Failed{status}); }

  void Dispatch(const SiteEvent& event);
  void Handle(const SiteEvent& event, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const SiteAction& action, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Run(const Effects& effects);
  // The step thread's actions until the rules are at one of these turns, or the site has failed.
  absl::StatusOr<SiteRules::Turn> AwaitTurn(Deadline deadline, std::initializer_list<SiteRules::Turn> awaited);
  absl::StatusOr<core::Step> JoinBy(Deadline deadline);
  void UploadInitial();
  void SendProgress();
  absl::Status RestoreArrays() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const core::RunConfig config_;
  const core::Manifest manifest_;
  replica::ParameterStore* const store_;
  transport::CoordinatorLink* const link_;
  const core::Clock& clock_;
  std::function<void(AnchorCopy)> evaluate_;
  std::unique_ptr<core::FragmentMap> map_;  // set by the first welcome, then constant
  std::atomic<bool> stop_requested_ = false;
  bool joining_ = false;  // the step thread's: it has no place yet, also between two calls

  mutable core::Mutex mutex_;
  std::condition_variable changed_;
  SiteRules rules_ ABSL_GUARDED_BY(mutex_);
  Effects step_actions_ ABSL_GUARDED_BY(mutex_);
  // Of each fragment: what has arrived and is not taken, and what was sent and is not admitted.
  std::vector<std::shared_ptr<const Payload>> arrived_ ABSL_GUARDED_BY(mutex_);
  std::vector<Chunks> sent_ ABSL_GUARDED_BY(mutex_);
  std::optional<SiteCheckpoint> restored_ ABSL_GUARDED_BY(mutex_);  // until the first welcome
  SiteReport report_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Movers> movers_;  // from the first welcome on; its threads call us
  SiteTransfers transfers_;
  Heartbeat heart_;
};

}  // namespace causeway::worker
