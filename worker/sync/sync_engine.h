// A site's side of the protocol: joins the run, sends outer gradients and applies updates when the schedule says so,
// and never makes the step loop wait for anything but an update that is due (synchronous mode).
//
//   step loop      Join ─► step 1, AfterStep(1) ─► step 2, AfterStep(2) ─► …  ─► CompleteRounds ─► Leave
//                              │ SEND                 │ APPLY: waits if it must, mixes
//   copy thread                └► copies θ            ▲
//   task thread                     └► Δ, encode, upload
//   link threads    chunks of the update ─► task thread: decode, outer step on W, digest
//
// The next update of each fragment is always asked for; it is kept encoded until it is complete and the one before it
// is in θ. In quorum mode it is applied at the first step boundary after that, and a SEND that comes due while an
// earlier contribution of the fragment is unresolved is skipped: its steps are in the next Δ.
//
// A site that was dropped from the run and joins anew keeps its θ, as W + what it trained: it catches up by the updates
// it missed, or where they are gone, by the anchor. Only where the coordinator took a contribution that the site does
// not know of (it came back from an older checkpoint) does θ start from W, so that nothing is merged twice.
//
// Knows spans of parameters with names and shapes, no model. The step loop's calls come from one thread; LinkListener's
// from the link's threads; RequestStop, Report and ReportEval from any.
// Source: docs/architecture.md.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/run_config.h"
#include "transport/coordinator_link.h"
#include "worker/sync/fragment_sync.h"
#include "worker/sync/sync_checkpoint.h"
#include "worker/sync/sync_delay.h"
#include "worker/sync/task_thread.h"

namespace causeway::worker {

// A copy of all anchors, tensor by tensor in manifest order, without padding.
struct AnchorCopy {
  std::vector<std::vector<float>> tensors;
  std::vector<core::Version> versions;
};

// What the training loop knows and the coordinator shows.
struct TrainingReport {
  core::Step step = 0;
  int64_t tokens = 0;
  double loss = 0;  // of the last step
  double tokens_per_s = 0;
  double compute_s = 0;
  std::optional<core::OffloadProgress> offload;
};

class SyncEngine final : public transport::LinkListener {
 public:
  // `tensors` are the live parameters (θ) in manifest order. `link` and what `tensors` point to outlive the engine.
  SyncEngine(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest,
             std::vector<std::span<float>> tensors, transport::CoordinatorLink* link);
  ~SyncEngine() override;

  // Statuses of the step loop's calls: PERMISSION_DENIED refused by the coordinator, UNAVAILABLE not reached in time,
  // CANCELLED asked to stop, DATA_LOSS a value is not finite (named), INTERNAL the coordinator broke the protocol.

  // Before Join: goes on from a checkpoint; θ was restored already.
  void Restore(SyncCheckpoint checkpoint);

  // Takes part: blocks until the site has its anchors and its place. Returns the step it has, as it were, just done.
  absl::StatusOr<core::Step> Join();

  // What the schedule wants at the end of inner step t. Returns t, or, when the site had been dropped from the run and
  // joined anew meanwhile, the step to go on from. Waits while the run is paused.
  absl::StatusOr<core::Step> AfterStep(core::Step t);

  // What AfterStep sends is copied while the next step computes, by this schedule, which keeps θ from being changed
  // before. Otherwise AfterStep waits for the copies. Before Join; outlives the engine.
  void DeferCopies(offload::BusSchedule* bus) { bus_ = bus; }

  // Whether AfterStep(t) may read or write θ of the fragment.
  bool Touches(core::FragmentId fragment, core::Step t) const;

  // Calls `save` with what a process that starts again needs, at the end of step t, and returns when it has. θ and the
  // inner optimizer are the caller's. Runs on the task thread, while no array changes. False, and nothing is saved,
  // where θ is not W and what was trained: before the site has its place, and once it only completes rounds.
  bool Checkpoint(core::Step t, const std::function<void(const SyncCheckpoint&)>& save);
  // Rounds of all fragments that θ has: checkpoints are counted in them.
  core::Version CompletedRounds() const;

  absl::Status CompleteRounds();  // waits for the rounds that are open; nothing mixes into θ any more
  absl::Status DrainUploads();    // waits for the verdicts on what was sent
  void Leave(bool finished, const std::string& reason);

  void RequestStop();  // calls that wait return CANCELLED
  bool stop_requested() const { return stop_requested_; }

  // Who shares the data, as of the last applied update.
  const std::vector<core::SiteId>& sites() const { return sites_; }
  const core::FragmentMap& map() const { return *map_; }
  int64_t stays() const { return stays_; }  // how often it has joined; θ and the step were set each time

  // Called with a copy of the anchors whenever it is this site's turn to evaluate them, on the task thread: it should
  // only pass the copy on. Set before Join.
  void SetEvaluate(std::function<void(AnchorCopy)> evaluate) { evaluate_ = std::move(evaluate); }
  // Calls `take` likewise, once, with what the anchors are when its turn has come.
  void PostAnchorCopy(std::function<void(AnchorCopy)> take);
  void FinishTasks() {  // returns when what was posted has run
    copies_.Finish();
    tasks_.Finish();
  }
  core::Progress GetProgress();  // what the coordinator is told
  void Report(const TrainingReport& report);
  void ReportEval(double loss, std::vector<core::Version> versions);

  // ---- transport::LinkListener ----
  transport::Standing GetStanding() override;
  void OnWelcome(const transport::Welcome& welcome) override;
  void OnSeedRequest() override;
  void OnEntry(const core::Entry& entry) override;
  void OnNotice(const std::string& reason) override;
  void OnDrain(const std::string& reason) override;
  void OnHold(bool held) override;
  void OnFailure(const absl::Status& status) override;

 private:
  using Clock = std::chrono::steady_clock;

  // A payload that is arriving.
  static double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  struct Incoming {
    transport::DownloadHeader header;
    std::vector<std::string> chunks;
    uint64_t digest = 0;
    Clock::time_point begun_at;  // the header was here
  };

  struct Slot {
    std::unique_ptr<FragmentSync> sync;
    core::Version version = 0;          // of W, as the step loop may use it
    core::Version applied = 0;          // of W, as far as θ has it
    core::Version first = 0;            // base of the first contribution
    bool anchored = false;              // W is one of the run's
    bool keeps_local = false;           // θ is W + what was trained, and stays so while W moves
    bool busy = false;                  // the task thread encodes the fragment or takes an update
    bool send_due = false;              // quorum mode: as soon as the fragment is not busy
    int64_t fetch = 0;                  // counts downloads; what an earlier one brings is dropped
    std::shared_ptr<Incoming> arrived;  // the next update, complete
    std::optional<UnresolvedContribution> sent;
    core::Version resolved = -1;      // base of the last contribution that is known to be merged
    TrainedAmount merged_amount;      // that merged contributions have accounted for
    bool merged = false;              // the update that waits to be applied has our contribution
    std::vector<core::SiteId> sites;  // that update's
    bool evaluates = false;           // that update makes this site the one that evaluates
    core::Step delay = 0;             // τ of the round that θ applies next
    std::string delay_reason;         // where it was chosen
    Clock::time_point sent_at;        // of `sent`
    Clock::time_point admitted_at;    // of it, or of an earlier one
    Clock::time_point ready_at;
    double slack_s = 0;
  };

  // What becomes of an update that W has taken.
  enum class Phase {
    kJoining,     // the task thread moves θ along
    kEntering,    // none is taken: the step loop makes θ ready
    kTraining,    // the step loop applies it
    kCompleting,  // θ stays as it is
  };

  // Requests carry the stay they belong to; what comes for an earlier one is dropped.
  bool Failed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FailureStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Dropped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return generation_ != joined_generation_; }
  absl::Status InterruptedStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // failed or dropped
  absl::Status Interrupted() const;
  void SetFailure(const absl::Status& status);
  core::Step ApplyStep(core::FragmentId p) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return schedule_.SendStep(p, slots_[p].applied) + slots_[p].delay;
  }
  void ChooseDelay(core::FragmentId p) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsQuorum() const { return config_.sync.mode == core::SyncMode::kQuorum; }

  // Joining.
  bool IsJoining() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // without a place
  absl::StatusOr<core::Step> TakePlace();
  void SettleEarlierStay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status GetAnchors();
  absl::StatusOr<core::Entry> AwaitEntry();
  void UploadInitial();
  absl::Status Enter(const core::Entry& entry);
  absl::Status ResumeFromCheckpoint();
  SyncCheckpoint Capture(core::Step t) const;
  void FillFromCheckpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Sending.
  absl::Status HoldWhilePaused();
  void SendDue(core::FragmentId p, core::Step t);
  void Send(core::FragmentId p);
  void EncodeAndUpload(core::FragmentId p, core::Version base, int64_t generation);
  void Upload(core::FragmentId p, int64_t generation);
  void OnVerdict(core::FragmentId p, core::Version base, int64_t generation, const absl::Status& verdict);

  // Receiving.
  void Fetch(transport::DownloadRequest request, int64_t generation,
             std::function<void(const std::shared_ptr<Incoming>&, const absl::Status&)> take);
  void RequestUpdate(core::FragmentId p, int64_t generation);
  void RequestAnchor(core::FragmentId p, core::Version at_least, uint64_t held_digest, int64_t generation);
  void TakeAnchor(core::FragmentId p, const Incoming& incoming);
  void LoseAnchor(core::FragmentId p, const std::string& why, int64_t generation);
  void TakeArrived(core::FragmentId p, int64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeUpdate(core::FragmentId p, const Incoming& incoming, int64_t generation);
  bool ResolveBy(core::FragmentId p, const transport::DownloadHeader& header);
  void MoveLocal(core::FragmentId p, bool merged);
  absl::Status Apply(core::FragmentId p);
  absl::Status AwaitVersion(core::FragmentId p, core::Version version);
  bool EvaluatesAfter(const Slot& slot) const;
  void PostEvaluation();
  AnchorCopy CopyAnchors() const;
  // Runs `task` on the task thread unless the site was dropped from the run meanwhile.
  void Post(int64_t generation, std::function<void()> task);
  void Beat();
  void SendProgress(const core::Progress& progress);
  core::Progress MakeProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const core::RunConfig config_;
  const core::SiteId site_;
  const core::Manifest manifest_;
  const core::FragmentSchedule schedule_;
  const std::vector<std::span<float>> tensors_;
  transport::CoordinatorLink* const link_;
  std::unique_ptr<core::FragmentMap> map_;  // set by the first welcome, then constant
  std::vector<core::SiteId> sites_;         // of the step loop
  std::function<void(AnchorCopy)> evaluate_;
  int64_t stays_ = 0;  // of the step loop
  offload::BusSchedule* bus_ = nullptr;
  std::atomic<bool> stop_requested_ = false;

  mutable core::Mutex mutex_;
  std::condition_variable changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;         // stays in the run: rises when it has to join anew
  int64_t joined_generation_ ABSL_GUARDED_BY(mutex_) = 0;  // that the step loop takes part in
  bool seed_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  bool resumed_ ABSL_GUARDED_BY(mutex_) = false;    // by the last welcome
  bool held_ ABSL_GUARDED_BY(mutex_) = false;       // the run is paused
  bool ready_due_ ABSL_GUARDED_BY(mutex_) = false;  // the control stream is new: ready is to be said (again)
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kJoining;
  std::vector<core::Version> last_admitted_ ABSL_GUARDED_BY(mutex_);
  std::optional<core::Entry> entry_ ABSL_GUARDED_BY(mutex_);
  std::optional<SyncCheckpoint> checkpoint_ ABSL_GUARDED_BY(mutex_);  // until the first welcome
  std::vector<Slot> slots_;                        // as map_; plain values under mutex_, `sync` as FragmentSync says
  TrainedAmount trained_ ABSL_GUARDED_BY(mutex_);  // in all
  int64_t reported_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  core::Progress progress_ ABSL_GUARDED_BY(mutex_);
  SyncDelay delay_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point stepped_at_ ABSL_GUARDED_BY(mutex_);  // the end of the last step; none: it says nothing
  double stalled_s_ ABSL_GUARDED_BY(mutex_) = 0;          // by then
  Clock::time_point entered_at_ ABSL_GUARDED_BY(mutex_);
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;

  TaskThread tasks_;
  TaskThread copies_;  // after tasks_: it posts there
  std::thread heart_;
};

}  // namespace causeway::worker
