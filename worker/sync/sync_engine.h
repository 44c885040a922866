// A site's side of the protocol: joins the run, sends outer gradients and applies updates when the schedule says so,
// and never makes the step loop wait for anything but an update that is due.
//
//   step loop      Join ─► step 1, AfterStep(1) ─► step 2, AfterStep(2) ─► …  ─► CompleteRounds ─► Leave
//                              │ SEND: copies θ       │ APPLY: waits if it must, mixes
//   task thread                └► Δ, encode, upload   ▲
//   link threads    chunks of the update ─► task thread: decode, outer step on W, digest
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
};

class SyncEngine final : public transport::LinkListener {
 public:
  // `tensors` are the live parameters (θ) in manifest order. `link` and what `tensors` point to outlive the engine.
  SyncEngine(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest,
             std::vector<std::span<float>> tensors, transport::CoordinatorLink* link);
  ~SyncEngine() override;

  // Statuses of the step loop's calls: PERMISSION_DENIED refused by the coordinator, UNAVAILABLE not reached in time,
  // CANCELLED asked to stop, DATA_LOSS a value is not finite (named), INTERNAL the coordinator broke the protocol.

  // Takes part: blocks until the site has its anchors (θ is W then) and its place. Returns the step it has, as it were,
  // just done.
  absl::StatusOr<core::Step> Join();

  // What the schedule wants at the end of inner step t. Returns t, or, when the site had been dropped from the run and
  // joined anew meanwhile, the step to go on from.
  absl::StatusOr<core::Step> AfterStep(core::Step t);

  // Whether AfterStep(t) will read or write θ of the fragment.
  bool Touches(core::FragmentId fragment, core::Step t) const;

  absl::Status CompleteRounds();  // waits for the rounds that are open; nothing mixes into θ any more
  absl::Status DrainUploads();    // waits for the verdicts on what was sent
  void Leave(bool finished, const std::string& reason);

  void RequestStop();  // calls that wait return CANCELLED
  bool stop_requested() const { return stop_requested_; }

  // Who shares the data, as of the last applied update.
  const std::vector<core::SiteId>& sites() const { return sites_; }
  const core::FragmentMap& map() const { return *map_; }
  int64_t stays() const { return stays_; }  // how often it has joined; θ was set from the anchors each time

  // Called with a copy of the anchors whenever it is this site's turn to evaluate them, on the task thread: it should
  // only pass the copy on. Set before Join.
  void SetEvaluate(std::function<void(AnchorCopy)> evaluate) { evaluate_ = std::move(evaluate); }
  void Report(const TrainingReport& report);
  void ReportEval(double loss, std::vector<core::Version> versions);

  // ---- transport::LinkListener ----
  std::vector<core::Version> HeldVersions() override;
  void OnWelcome(bool resumed, const core::FragmentMap& map) override;
  void OnSeedRequest() override;
  void OnEntry(const core::Entry& entry) override;
  void OnNotice(const std::string& reason) override;
  void OnDrain(const std::string& reason) override;
  void OnFailure(const absl::Status& status) override;

 private:
  using Clock = std::chrono::steady_clock;

  // A payload that is arriving.
  struct Incoming {
    transport::DownloadHeader header;
    std::vector<std::string> chunks;
  };

  struct Slot {
    std::unique_ptr<FragmentSync> sync;
    core::Version version = 0;        // of W, as the step loop may use it
    core::Version applied = 0;        // of W, as far as θ has it
    core::Version first = 0;          // base of the first contribution
    bool anchored = false;            // while joining: W is here
    bool uploading = false;           // no verdict yet
    bool merged = false;              // the update that waits to be applied has our contribution
    std::vector<core::SiteId> sites;  // that update's
    bool evaluates = false;           // that update makes this site the one that evaluates
    Clock::time_point ready_at;
    double slack_s = 0;
  };

  // Requests carry the stay they belong to; what comes for an earlier one is dropped.
  bool Failed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FailureStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Dropped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return generation_ != joined_generation_; }
  void SetFailure(const absl::Status& status);

  absl::StatusOr<core::Step> TakePlace();
  absl::Status GetAnchors();
  absl::StatusOr<core::Entry> AwaitEntry();
  void RequestAnchor(core::FragmentId p, core::Version at_least, uint64_t held_digest, int64_t generation);
  void TakeAnchor(core::FragmentId p, const Incoming& incoming, uint64_t digest);
  void UploadInitial();
  absl::Status Enter(const core::Entry& entry);

  void Send(core::FragmentId p, core::Version base);
  void EncodeAndUpload(core::FragmentId p, core::Version base, int64_t generation);
  void Fetch(transport::DownloadRequest request, int64_t generation,
             std::function<void(const Incoming&, uint64_t digest)> take);
  void RequestUpdate(core::FragmentId p, core::Version base, int64_t generation);
  void TakeUpdate(core::FragmentId p, const Incoming& incoming, uint64_t digest, int64_t generation);
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
  int64_t stays_ = 0;     // of the step loop
  bool trained_ = false;  // of the step loop: θ is not what it was made with
  std::atomic<bool> stop_requested_ = false;

  core::Mutex mutex_;
  std::condition_variable changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;         // stays in the run: rises when it has to join anew
  int64_t joined_generation_ ABSL_GUARDED_BY(mutex_) = 0;  // that the step loop takes part in
  bool seed_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<core::Entry> entry_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> slots_;  // as map_; plain values under mutex_, `sync` as FragmentSync says
  core::Progress progress_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point entered_at_ ABSL_GUARDED_BY(mutex_);
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;

  TaskThread tasks_;
  std::thread heart_;
};

}  // namespace causeway::worker
