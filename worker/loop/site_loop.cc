#include "worker/loop/site_loop.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "formats/model_export.h"

namespace causeway::worker {
namespace {

constexpr double kReportSeconds = 1;  // window over which tokens/s is measured
constexpr double kShowSeconds = 10;   // between two progress lines

}  // namespace

// ---- Evaluations ----

void Evaluations::Take(AnchorCopy copy) {
  if (!evaluator_->between_steps()) return Evaluate(std::move(copy));
  core::MutexLock lock(mutex_);
  waiting_ = std::move(copy);
}

void Evaluations::BetweenSteps() {
  std::optional<AnchorCopy> copy;
  {
    core::MutexLock lock(mutex_);
    copy = std::exchange(waiting_, std::nullopt);
  }
  if (!copy) return;
  site_.watch().Waits("an evaluation");
  Evaluate(*std::move(copy));
  site_.watch().Waits("");
}

void Evaluations::Evaluate(AnchorCopy copy) {
  const absl::StatusOr<double> loss = evaluator_->Loss({copy.tensors.begin(), copy.tensors.end()});
  if (!loss.ok()) return spdlog::error("no evaluation: {}", loss.status().ToString());
  if (log_ != nullptr) log_->Eval(core::SystemClock().UnixMs(), *loss, copy.versions);
  site_.ReportWith([&](SiteReport& report) { report.Evaluated(*loss, std::move(copy.versions)); });
}

// ---- StepPace ----

TrainingReport StepPace::Count(core::Step step, const StepResult& result, double step_s,
                               std::optional<core::OffloadProgress> offload) {
  ++counted_;
  report_.offload = std::move(offload);
  report_.step = step;
  report_.tokens += result.tokens;
  report_.loss = result.loss;
  report_.compute_s += step_s;
  if (const double since_s = core::SystemClock().SecondsSince(window_begin_); since_s >= kReportSeconds) {
    report_.tokens_per_s = static_cast<double>(report_.tokens - window_tokens_) / since_s;
    window_begin_ = core::SystemClock().Now();
    window_tokens_ = report_.tokens;
  }
  return report_;
}

bool StepPace::ProgressDue() {
  if (core::SystemClock().SecondsSince(shown_) < kShowSeconds) return false;
  shown_ = core::SystemClock().Now();
  return true;
}

std::string StepPace::ProgressLine(const RunLength& length, const core::Progress& progress) const {
  const core::Step step = report_.step, steps = length.steps;
  std::string line = steps > 0 ? absl::StrFormat("step %d of %d", step, steps) : absl::StrFormat("step %d", step);
  if (length.tokens > 0) {
    const double share = static_cast<double>(length.run_tokens) / static_cast<double>(length.tokens);
    absl::StrAppendFormat(&line, ", %.0f %% of the run's tokens", 100 * std::min(share, 1.0));
  }
  absl::StrAppendFormat(&line, ": loss %.4f, %.0f tokens/s", report_.loss, report_.tokens_per_s);
  if (progress.wall_s > 0) {
    absl::StrAppendFormat(&line, ", computes %.0f %% of the time", 100 * progress.compute_s / progress.wall_s);
  }
  if (report_.offload) absl::StrAppendFormat(&line, ", optimizer %.3g ms a step", 1e3 * report_.offload->measured_s);
  const double tokens_a_step = counted_ > 0 ? static_cast<double>(report_.tokens) / static_cast<double>(counted_) : 0;
  if (steps > step && report_.tokens_per_s > 0 && tokens_a_step > 0) {
    const double left_s = static_cast<double>(steps - step) * tokens_a_step / report_.tokens_per_s;
    absl::StrAppend(&line, ", about ", absl::FormatDuration(absl::Seconds(std::ceil(left_s))), " left");
  }
  return line;
}

// ---- Checkpoints ----

bool Checkpoints::Due(core::Version rounds) const {
  return store_ != nullptr && config_.checkpoint.every_rounds > 0 &&
         rounds >= saved_rounds_ + config_.checkpoint.every_rounds;
}

void Checkpoints::Save(core::Step step, Trainer& trainer, Site& site) {
  if (store_ == nullptr) return;
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  saved_rounds_ = site.CompletedRounds();
  absl::Status status;
  site.watch().Waits("a checkpoint");
  const bool saved = site.Checkpoint([&](const SiteCheckpoint& checkpoint) {
    status = store_->Save(
        {config_.run_id, name_, link_.session(), checkpoint.facts.lineage, link_.remembered().proofs}, checkpoint,
        [&](const std::string& path) { return trainer.Save(path); }, config_.checkpoint.keep);
  });
  site.watch().Waits("");
  if (!saved) return;
  site.ReportWith([&](SiteReport& report) { report.CheckpointSaved(status); });
  if (!status.ok()) {
    spdlog::error("no checkpoint after step {}, goes on without: {}", step, status.ToString());
  } else {
    spdlog::info("saved a checkpoint after step {}, in {:.1f} s", step, core::SystemClock().SecondsSince(begin));
    if (log_ != nullptr) log_->Checkpoint(core::SystemClock().UnixMs(), step, core::SystemClock().SecondsSince(begin));
  }
}

// ---- SiteLoop ----

SiteLoop::SiteLoop(Trainer& trainer, Site& site, Checkpoints& checkpoints, Exports& exports, TrainingLog* log)
    : trainer_(trainer),
      site_(site),
      checkpoints_(checkpoints),
      exports_(exports),
      log_(log),
      evaluations_(trainer.NewEvaluator(), site, log) {
  if (evaluations_.possible()) site.SetEvaluate([this](AnchorCopy copy) { evaluations_.Start(std::move(copy)); });
}

absl::Status SiteLoop::Run() {
  ASSIGN_OR_RETURN(core::Step step, site_.Join());
  while (true) {
    TakePlace(step);
    if (Length().EndsAfter(step)) {
      const absl::Status completed = site_.CompleteRounds();
      if (completed.ok()) break;
      if (!absl::IsAborted(completed)) return completed;
      ASSIGN_OR_RETURN(step, site_.Join());  // dropped while it waited
      continue;
    }
    if (site_.stop_requested()) return absl::CancelledError("asked to stop");
    if (checkpoints_.Due(site_.CompletedRounds())) checkpoints_.Save(step, trainer_, site_);
    if (exports_.Due(site_.CompletedRounds())) PostExport();
    evaluations_.BetweenSteps();
    TakeSettings(step + 1);
    RETURN_IF_ERROR(TakeStep(step + 1));
    ASSIGN_OR_RETURN(step, site_.AfterStep(step + 1));
  }
  if (exports_.enabled()) PostExport();
  site_.FinishTasks();
  evaluations_.Finish();
  exports_.Finish();
  return absl::OkStatus();
}

void SiteLoop::PostExport() {
  site_.PostAnchorCopy([this](AnchorCopy copy) { exports_.Write(std::move(copy)); });
}

// Reports a step, in the log and on the terminal.
void SiteLoop::Show() {
  if (log_ != nullptr) log_->Step(core::SystemClock().UnixMs(), site_.GetProgress(), site_.CompletedRounds());
  if (!pace_.ProgressDue()) return;
  spdlog::info("{}", pace_.ProgressLine(Length(), site_.GetProgress()));
}

RunLength SiteLoop::Length() const {
  const core::RunConfig& settings = site_.settings().newest();
  const int64_t run_tokens = settings.tokens > 0 ? site_.GetProgress().run_tokens : 0;
  return {.steps = settings.steps, .tokens = settings.tokens, .run_tokens = run_tokens};
}

absl::Status SiteLoop::DumpLocal(const std::string& path) {
  const core::Manifest& manifest = trainer_.manifest();
  std::vector<std::vector<float>> padded;
  std::vector<std::span<const float>> tensors;
  for (size_t i = 0; i < manifest.size(); ++i) {
    const int64_t units = core::UnitsFor(manifest[i].NumValues());
    std::vector<float>& values = padded.emplace_back(units * core::kUnitValues);
    RETURN_IF_ERROR(trainer_.store().Read({{static_cast<int>(i), 0, units}}, values));
    tensors.push_back(std::span<const float>(values).first(manifest[i].NumValues()));
  }
  return formats::WriteLocalDump(path, manifest, tensors);
}

absl::Status SiteLoop::TakeStep(core::Step step) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  if (const core::RunConfig& settings = site_.settings().AtStep(step); settings.tokens > 0) {
    const int64_t of_step = settings.TokensOfAStep() / settings.membership.min_sites;
    trainer_.MoveSchedule(Length().run_tokens + of_step);
  }
  ASSIGN_OR_RETURN(const StepResult result, trainer_.Step(step));
  step_ = step;
  if (const core::RankProgress ranks = trainer_.rank_progress(); ranks.ranks > 1 || ranks.onebit_adam) {
    site_.watch().HasRanks(ranks);
  }
  TrainingReport report =
      pace_.Count(step, result, core::SystemClock().SecondsSince(begin), trainer_.offload_progress());
  if (trainer_.optimizer() != nullptr) report.lr = trainer_.optimizer()->rate().At(step);
  site_.ReportWith([&](SiteReport& whole) { whole.Trained(report); });
  Show();
  return absl::OkStatus();
}

void SiteLoop::TakeSettings(core::Step step) {
  const core::RunConfig* const settings = &site_.settings().AtStep(step);
  if (settings == taken_ || (taken_ == nullptr && settings == &site_.settings().first())) return;
  taken_ = settings;
  trainer_.Change(*settings);
}

// Joining (anew) sets θ and the step; joining and updates may change the sites that share the data.
void SiteLoop::TakePlace(core::Step step) {
  if (site_.stays() != stays_) {
    stays_ = site_.stays();
    step_ = step;
    pace_.Enter();
    checkpoints_.Begin(site_.CompletedRounds());
    exports_.Begin(site_.CompletedRounds());
  }
  if (site_.sites() != sites_) {
    sites_ = site_.sites();
    trainer_.SetSites(sites_);
  }
}

}  // namespace causeway::worker
