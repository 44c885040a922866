// A site whose steps another program takes: Site and its link, behind calls that return when their timeout expires.
//
//   program ── Join, AfterStep, … ─► StepThread ─► Site ─► ExternalStore ─► pieces of work ─► program
//
// A call that has to wait returns kAgain or kWork; the program repeats it to go on waiting (worker/site/step_thread.h).
// One owner thread; Done, Stop and GetProgress may be called from any thread. Statuses are those of Site; CANCELLED: a
// stop was requested.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "worker/library/external_model.h"
#include "worker/library/external_run.h"
#include "worker/library/external_store.h"
#include "worker/library/file_giver.h"
#include "worker/site/site.h"
#include "worker/site/site_state_parts.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

class ExternalSite {
 public:
  using Turn = StepThread::Turn;
  using Timeout = std::chrono::nanoseconds;

  // The program's report of a step; NaN: the program gives no value.
  struct StepReport {
    int64_t tokens = 0;
    double loss = 0;
    double step_s = 0;
  };

  ExternalSite(const ExternalRun& run, ExternalModel model);

  // To be called before the destructor: ends the operation in progress within half a second. False: the program still
  // holds pieces of work, so that their memory cannot be freed, and the site must not be destroyed.
  bool End();

  absl::Status Restore(std::span<const SiteStateParts::Part> parts);  // before Join
  absl::Status EncodeOnDevice(int cuda_device);                       // before Join; see external_device.h
  absl::StatusOr<Turn> Join(Timeout timeout, core::Step& step);
  absl::StatusOr<Turn> AfterStep(core::Step step, const StepReport& report, Timeout timeout, core::Step& next);
  absl::StatusOr<Turn> ReadAnchor(Timeout timeout);
  absl::Status ReportEval(double loss);
  absl::StatusOr<Turn> Capture(Timeout timeout, SiteStateParts& state);
  absl::StatusOr<Turn> Complete(Timeout timeout);
  absl::StatusOr<Turn> Drain(Timeout timeout);
  absl::StatusOr<Turn> Leave(bool finished, const std::string& reason, Timeout timeout);

  // The next piece, with the program's index of its tensor; none: there is no work to take now.
  std::optional<WorkPiece> TakeWork();

  // ---- Any thread ----
  absl::Status Done(int64_t id, bool failed);
  absl::Status DoneAfter(int64_t id, void* event) { return store_.DoneAfter(id, event); }
  absl::Status CarryOut(int64_t id, void* theta);  // see ExternalStore
  absl::Status Keep(int64_t id, const void* theta, void* stream) { return store_.Keep(id, theta, stream); }
  void Stop();
  void Waits(const std::string& what);  // see StepWatch
  absl::Status ReportRanks(const std::string& text);
  std::string ProgressJson();

 private:
  absl::StatusOr<Turn> Run(const std::string& operation, Timeout timeout, std::function<absl::Status()> body);
  void Count(core::Step step, const StepReport& report);
  absl::Status CompareTheta();

  const core::RunConfig config_;
  const core::SiteId name_;
  const ExternalModel model_;
  StepThread step_thread_;  // declared before the members that its thread uses
  ExternalStore store_;
  const std::unique_ptr<transport::SessionLink> link_;
  Site site_;
  TrainingReport report_;
  core::Clock::TimePoint stepped_at_;  // when the step thread let the program continue
  struct {
    core::Clock::TimePoint at;
    int64_t tokens = 0;
  } rated_;                               // when the token rate was last computed
  std::optional<uint64_t> theta_digest_;  // the restored θ's digest
  core::Step step_ = 0;                   // result or argument of the operation in progress
  SiteStateParts state_;
  std::vector<core::Version> anchor_versions_;  // the versions that ReadAnchor handed out last
  bool joined_ = false;                         // has joined, or is joining
  bool in_run_ = false;
  bool left_ = false;
  FileGiver files_;
};

}  // namespace causeway::worker
