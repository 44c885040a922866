#include "worker/optimizer/inner_optimizer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/multiversion.h"
#include "offload/adamw.h"
#include "offload/calibration.h"
#include "worker/ranks/late_mean.h"

namespace causeway::worker {
namespace {

const std::string kFirstMoment = "first_moment.";
const std::string kSecondMoment = "second_moment.";

offload::SubgroupPlan MakePlan(const core::OffloadConfig& config, int64_t parameters, core::ThreadTeam& team,
                               const std::string& calibration_path) {
  offload::Calibration calibration;
  if (parameters >= offload::kLeastBeyondCaches) {
    absl::StatusOr<offload::Calibration> calibrated = offload::Calibrate(parameters, team, nullptr, calibration_path);
    if (!calibrated.ok()) spdlog::warn("bandwidths could not be measured: {}", calibrated.status().ToString());
    if (calibrated.ok()) calibration = *std::move(calibrated);
    if (!calibration.note.empty()) spdlog::debug("bandwidths are not kept: {}", calibration.note);
  }
  const offload::SubgroupPlan plan = PlanSubgroups(config, parameters, calibration.bandwidths);
  std::string predicted;
  if (plan.predicted_s > 0) predicted = absl::StrFormat(", predicted %.3g ms an update", 1e3 * plan.predicted_s);
  if (calibration.measured) predicted += " (measured now)";
  spdlog::info("optimizer state of {} parameters, {} threads: k {} ({}){}", parameters, team.threads(),
               core::InterleaveName(plan.k), plan.reason, predicted);
  return plan;
}

}  // namespace

std::vector<offload::DecaySegment> DecaySegmentsOf(const core::Manifest& manifest) {
  std::vector<offload::DecaySegment> segments;
  for (const core::TensorSpec& spec : manifest) segments.push_back({spec.NumValues(), Decays(spec)});
  return segments;
}

bool Decays(const core::TensorSpec& spec) { return spec.shape.size() >= 2; }

float ClipFactor(double clip, double sum_of_squares) {
  const double norm = std::sqrt(sum_of_squares);
  return clip == 0 || norm <= clip ? 1.0f : static_cast<float>(clip / norm);
}

absl::StatusOr<int64_t> ReadStepsTaken(const formats::SafetensorsFile& file) {
  int64_t taken = 0;
  const auto steps = file.metadata().find(kStepsTaken);
  if (steps != file.metadata().end() && absl::SimpleAtoi(steps->second, &taken)) return taken;
  return absl::DataLossError(absl::StrCat(file.path(), ": its metadata has no ", kStepsTaken));
}

void AppendMoments(const core::Manifest& manifest, const TensorValues& first, const TensorValues& second,
                   std::vector<formats::TensorData>& tensors) {
  for (size_t i = 0; i < manifest.size(); ++i) {
    const auto index = static_cast<int>(i);
    tensors.push_back({kFirstMoment + manifest[i].name, manifest[i].shape, first[index]});
    tensors.push_back({kSecondMoment + manifest[i].name, manifest[i].shape, second[index]});
  }
}

absl::Status ReadMoments(const core::Manifest& manifest, const formats::SafetensorsFile& file, TensorValues& first,
                         TensorValues& second, const std::vector<int64_t>& part_firsts) {
  for (size_t i = 0; i < manifest.size(); ++i) {
    const auto index = static_cast<int>(i);
    for (const auto& [kind, moments] : {std::pair(kFirstMoment, &first), std::pair(kSecondMoment, &second)}) {
      const std::string name = kind + manifest[i].name;
      if (part_firsts.empty()) {
        RETURN_IF_ERROR(file.Read(name, (*moments)[index]));
      } else if (part_firsts[i] >= 0) {
        RETURN_IF_ERROR(file.ReadPart(name, part_firsts[i], (*moments)[index]));
      }
    }
  }
  return absl::OkStatus();
}

double LearningRate(const core::InnerConfig& config, core::Step total_steps, core::Step t) {
  const core::Step warmup = config.warmup_steps;
  if (t <= warmup) return config.lr * static_cast<double>(t) / static_cast<double>(warmup);
  if (config.schedule == core::InnerSchedule::kConstant || total_steps <= warmup) return config.lr;
  const double progress = static_cast<double>(t - warmup) / static_cast<double>(total_steps - warmup);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return config.lr * (0.1 + 0.9 * cosine);
}

// In double, where no sum of float squares overflows: it is finite exactly if all values are. The order of the sum is
// fixed, so that a run repeats itself on the same machine.
CAUSEWAY_MULTIVERSION
double SumOfSquares(const float* values, size_t size) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < size; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

absl::Status CheckFinite(const core::TensorSpec& spec, std::span<const float> gradient, core::Step t) {
  const auto bad = std::find_if(gradient.begin(), gradient.end(), [](float g) { return !std::isfinite(g); });
  if (bad == gradient.end()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("gradient of %s is %f at index %d in step %d", spec.name, *bad, bad - gradient.begin(), t));
}

InnerOptimizer::AdamW::AdamW(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                             offload::BusSchedule& bus, const std::string& calibration_path)
    : team(UpdateThreads(std::ssize(parameters.Flat()))),
      first_moments(manifest),
      second_moments(manifest),
      update({parameters.Flat(), first_moments.Flat(), second_moments.Flat()}, DecaySegmentsOf(manifest),
             MakePlan(config.offload, std::ssize(parameters.Flat()), team, calibration_path), &team, &bus) {}

InnerOptimizer::InnerOptimizer(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                               offload::BusSchedule& bus, const std::string& calibration_path,
                               const TrainerRanks& ranks)
    : config_(config.inner), total_steps_(config.steps), manifest_(manifest), parameters_(parameters), bus_(bus) {
  if (!core::HasMoments(config_.optimizer)) return;
  adamw_ = std::make_unique<AdamW>(config, manifest, parameters, bus, calibration_path);
  if (config_.optimizer != core::InnerOptimizerKind::kOnebitAdam) return;
  onebit_ = std::make_unique<OnebitAdam>(config_, manifest_, ranks, adamw_->first_moments.Flat(),
                                         adamw_->second_moments.Flat());
}

std::vector<double> InnerOptimizer::SquaresOf(const TensorValues& gradients) const {
  std::vector<double> squares;
  for (int i = 0; i < gradients.size(); ++i) {
    squares.push_back(worker::SumOfSquares(gradients[i].data(), gradients[i].size()));
  }
  return squares;
}

absl::StatusOr<double> InnerOptimizer::SumOfSquares(core::Step t, const TensorValues& gradients) const {
  double sum = 0;
  const std::vector<double> squares = SquaresOf(gradients);
  for (int i = 0; i < gradients.size(); ++i) {
    if (!std::isfinite(squares[i])) return CheckFinite(manifest_[i], gradients[i], t);
    sum += squares[i];
  }
  return sum;
}

absl::Status InnerOptimizer::AppendState(std::vector<formats::TensorData>& tensors,
                                         std::map<std::string, std::string>& metadata) {
  metadata[kStepsTaken] = absl::StrCat(steps_taken_);
  if (adamw_ != nullptr) AppendMoments(manifest_, adamw_->first_moments, adamw_->second_moments, tensors);
  if (onebit_ != nullptr) onebit_->AppendState(tensors, metadata);
  return absl::OkStatus();
}

void InnerOptimizer::Saved() {
  if (onebit_ != nullptr) onebit_->DropGathered();
}

absl::Status InnerOptimizer::LoadState(const formats::SafetensorsFile& file) {
  ASSIGN_OR_RETURN(steps_taken_, ReadStepsTaken(file));
  if (adamw_ != nullptr) {
    RETURN_IF_ERROR(ReadMoments(manifest_, file, adamw_->first_moments, adamw_->second_moments, part_firsts_));
  }
  return onebit_ == nullptr ? absl::OkStatus() : onebit_->LoadState(file);
}

std::optional<core::OffloadProgress> InnerOptimizer::progress() const {
  if (adamw_ == nullptr) return std::nullopt;
  const offload::SubgroupPlan& plan = adamw_->update.plan();
  return core::OffloadProgress{.k = plan.k,
                               .subgroup = plan.subgroup,
                               .reason = plan.reason,
                               .predicted_s = plan.predicted_s,
                               .measured_s = adamw_->measured_s,
                               .waited_s = bus_.waited_s()};
}

std::optional<core::OnebitProgress> InnerOptimizer::onebit_progress() const {
  return onebit_ == nullptr ? std::nullopt : std::optional(onebit_->progress());
}

void InnerOptimizer::StepSgd(double lr, float gradient_scale, const TensorValues& gradients) {
  bus_.BeginUpdate();
  bus_.AwaitCopied({0, std::ssize(parameters_.Flat())});
  for (int i = 0; i < gradients.size(); ++i) {
    const double decay = Decays(manifest_[i]) ? config_.weight_decay : 0;
    offload::SgdStep({.lr = lr, .weight_decay = decay, .gradient_scale = gradient_scale}, gradients[i], parameters_[i]);
  }
  bus_.EndUpdate();
}

absl::Status InnerOptimizer::Step(core::Step t, const TensorValues& gradients, double sum_of_squares) {
  const float gradient_scale = ClipFactor(config_.clip, sum_of_squares);
  ++steps_taken_;
  const double lr = LearningRate(config_, total_steps_, t);
  if (adamw_ == nullptr) {
    StepSgd(lr, gradient_scale, gradients);
    return absl::OkStatus();
  }
  const bool frozen = averages_momenta();
  if (frozen) RETURN_IF_ERROR(onebit_->FinishStep(gradients.Flat(), gradient_scale));
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(adamw_->update.Step({.lr = lr,
                                       .beta1 = config_.beta1,
                                       .beta2 = config_.beta2,
                                       .weight_decay = config_.weight_decay,
                                       .gradient_scale = gradient_scale,
                                       .frozen_at = frozen ? onebit_->frozen_at() : 0},
                                      steps_taken_, frozen ? std::span<const float>() : gradients.Flat()));
  const double seconds = core::SystemClock().SecondsSince(begin);
  AddToLateMean(seconds, adamw_->measured_s);
  if (onebit_ != nullptr && !frozen) onebit_->NoteWarmupStep(steps_taken_, t);
  return absl::OkStatus();
}

}  // namespace causeway::worker
