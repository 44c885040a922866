// A site whose steps another program takes: Site and its link, behind calls that end when their time does.
//
//   program ── Join, AfterStep, … ─► StepThread ─► Site ─► ExternalStore ─► pieces of work ─► program
//
// Calls that wait return kAgain or kWork and are taken up again by the same call (worker/site/step_thread.h). One owner
// thread; Done, Stop and GetProgress from any. Statuses are Site's; CANCELLED: asked to stop.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "worker/site/external_model.h"
#include "worker/site/external_run.h"
#include "worker/site/external_store.h"
#include "worker/site/site.h"
#include "worker/site/site_state_parts.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

class ExternalSite {
 public:
  using Turn = StepThread::Turn;
  using Timeout = std::chrono::nanoseconds;

  // What a step did, as far as the program says; NaN: it does not.
  struct StepReport {
    int64_t tokens = 0;
    double loss = 0;
    double step_s = 0;
  };

  ExternalSite(const ExternalRun& run, ExternalModel model);

  // Before the destructor: ends within half a second what is under way. False: the program holds pieces of work, so
  // that their memory cannot be freed, and the site must not be destroyed.
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

  // The next piece, with the program's number of its tensor; none: there is nothing to take now.
  std::optional<WorkPiece> TakeWork();

  // ---- Any thread ----
  absl::Status Done(int64_t id, bool failed);
  absl::Status DoneAfter(int64_t id, void* event) { return store_.DoneAfter(id, event); }
  absl::Status CarryOut(int64_t id, void* theta);  // see ExternalStore
  absl::Status Keep(int64_t id, const void* theta, void* stream) { return store_.Keep(id, theta, stream); }
  void Stop();
  void Waits(const std::string& what);  // as StepWatch
  absl::Status ReportRanks(const std::string& text);
  std::string ProgressJson();

 private:
  absl::StatusOr<Turn> Run(const std::string& operation, Timeout timeout, std::function<absl::Status()> body);
  void Count(core::Step step, const StepReport& report);
  absl::Status CompareTheta();

  const core::RunConfig config_;
  const core::SiteId name_;
  const ExternalModel model_;
  StepThread step_thread_;  // before what it looks at; its thread uses all that follows
  ExternalStore store_;
  const std::unique_ptr<transport::SessionLink> link_;
  Site site_;
  TrainingReport report_;
  core::Clock::TimePoint stepped_at_;  // the step thread let the program go on
  core::Clock::TimePoint rated_at_;    // the rate of tokens was taken
  int64_t rated_tokens_ = 0;
  std::optional<uint64_t> theta_digest_;  // of what was restored
  core::Step step_ = 0;                   // what the operation under way came to, or is about
  SiteStateParts state_;
  std::vector<core::Version> anchor_versions_;  // that ReadAnchor handed out last
  bool joined_ = false;                         // or about to
  bool in_run_ = false;
  bool left_ = false;
};

}  // namespace causeway::worker
