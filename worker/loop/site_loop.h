// A site's step loop: takes the trainer's steps, lets the site do what the schedule requires between them, saves
// checkpoints, and has anchors evaluated in parallel with the training.
//
//   Join ─► Step(t) ─► Report ─► AfterStep(t) ─► Step(t + 1) … ─► CompleteRounds
//                                    │
//                                    └─► copy of the anchors ─┬─► Evaluations (a thread of its own) ─► ReportEval
//                                                             └─► Exports (another)
//
// One owner thread calls everything.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/clock.h"
#include "core/run_config.h"
#include "transport/coordinator_link.h"
#include "worker/data/evaluation.h"
#include "worker/loop/exports.h"
#include "worker/loop/training_log.h"
#include "worker/parallel/trainer.h"
#include "worker/site/checkpoint_store.h"
#include "worker/site/site.h"

namespace causeway::worker {

// Evaluates copies of the anchors in parallel with the training, or between two steps, as the evaluator needs it.
class Evaluations {
 public:
  Evaluations(std::unique_ptr<Evaluator> evaluator, Site& site, TrainingLog* log)
      : evaluator_(std::move(evaluator)), site_(site), log_(log) {}

  bool possible() const { return evaluator_ != nullptr; }
  void Start(AnchorCopy copy) { copies_.Post(std::move(copy)); }
  // Evaluates a copy that waits for the step thread, which calls it between two steps.
  void BetweenSteps();
  void Finish() {
    copies_.Finish();
    BetweenSteps();
  }

 private:
  void Take(AnchorCopy copy);
  void Evaluate(AnchorCopy copy);

  const std::unique_ptr<Evaluator> evaluator_;  // null where the model has no loss
  Site& site_;
  TrainingLog* const log_;
  core::Mutex mutex_;
  std::optional<AnchorCopy> waiting_ ABSL_GUARDED_BY(mutex_);  // a copy for the step thread
  NewestCopy copies_{[this](AnchorCopy copy) { Take(std::move(copy)); }};
};

// How long the run is, and how far it has come.
struct RunLength {
  core::Step steps = 0;  // 0: open
  int64_t tokens = 0;    // tokens of all sites; 0: open
  int64_t run_tokens = 0;

  bool EndsAfter(core::Step step) const { return (steps > 0 && step >= steps) || (tokens > 0 && run_tokens >= tokens); }
};

// Counts steps and tokens, and measures their rates.
class StepPace {
 public:
  TrainingReport Count(core::Step step, const StepResult& result, double step_s,
                       std::optional<core::OffloadProgress> offload);
  void Enter() { report_.compute_s = 0; }

  bool ProgressDue();  // whether a line for people is due, by time
  // "step 1200 of 2000: loss 1.6294, 14200 tokens/s, computes 96 % of the time, optimizer 1.2 ms a step, about 3m left"
  std::string ProgressLine(const RunLength& length, const core::Progress& progress) const;

 private:
  TrainingReport report_;
  int64_t counted_ = 0;  // steps counted so far
  core::Clock::TimePoint window_begin_ = core::SystemClock().Now();
  int64_t window_tokens_ = 0;
  core::Clock::TimePoint shown_ = core::SystemClock().Now();
};

// Saves a site's checkpoints; does nothing without a store. All arguments outlive it; the log may be null.
class Checkpoints {
 public:
  Checkpoints(CheckpointStore* store, core::SiteId site, const transport::SessionLink& link,
              const core::RunConfig& config, TrainingLog* log)
      : store_(store), name_(std::move(site)), link_(link), config_(config), log_(log) {}

  // Sets the rounds in the newest checkpoint, or those with which the site entered.
  void Begin(core::Version rounds) { saved_rounds_ = rounds; }
  bool Due(core::Version rounds) const;
  void Save(core::Step step, Trainer& trainer, Site& site);  // after that step; the step loop waits for it

 private:
  CheckpointStore* const store_;
  const core::SiteId name_;
  const transport::SessionLink& link_;
  const core::RunConfig& config_;
  TrainingLog* const log_;
  core::Version saved_rounds_ = 0;
};

class SiteLoop {
 public:
  // The arguments outlive it; the log may be null.
  SiteLoop(Trainer& trainer, Site& site, Checkpoints& checkpoints, Exports& exports, TrainingLog* log);

  absl::Status Run();  // returns OK after the last step, CANCELLED when asked to stop
  void SaveCheckpoint() { checkpoints_.Save(step_, trainer_, site_); }
  absl::Status DumpLocal(const std::string& path);

 private:
  absl::Status TakeStep(core::Step step);
  void TakePlace(core::Step step);
  void TakeSettings(core::Step step);  // takes over the settings of this step
  RunLength Length() const;
  void Show();
  void PostExport();

  Trainer& trainer_;
  Site& site_;
  Checkpoints& checkpoints_;
  Exports& exports_;
  TrainingLog* const log_;
  Evaluations evaluations_;
  StepPace pace_;
  std::vector<core::SiteId> sites_;
  core::Step step_ = 0;
  int64_t stays_ = 0;
  const core::RunConfig* taken_ = nullptr;  // the settings that the trainer has taken; null: its first
};

}  // namespace causeway::worker
