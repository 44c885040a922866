#include "worker/optimizer/host_optimizer.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "offload/adamw.h"
#include "offload/calibration.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {
namespace {

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

HostOptimizer::AdamW::AdamW(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                            offload::BusSchedule& bus, const std::string& calibration_path)
    : team(UpdateThreads(std::ssize(parameters.Flat()))),
      first_moments(manifest),
      second_moments(manifest),
      update({parameters.Flat(), first_moments.Flat(), second_moments.Flat()}, DecaySegmentsOf(manifest),
             MakePlan(config.offload, std::ssize(parameters.Flat()), team, calibration_path), &team, &bus) {}

HostOptimizer::HostOptimizer(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                             const TensorValues& gradients, offload::BusSchedule& bus,
                             const std::string& calibration_path, const TrainerRanks& ranks)
    : InnerOptimizer(config),
      config_(config.inner),
      manifest_(manifest),
      parameters_(parameters),
      gradients_(gradients),
      bus_(bus) {
  if (!core::HasMoments(config_.optimizer)) return;
  adamw_ = std::make_unique<AdamW>(config, manifest, parameters, bus, calibration_path);
  if (config_.optimizer != core::InnerOptimizerKind::kOnebitAdam) return;
  onebit_ = std::make_unique<OnebitAdam>(config_, manifest_, ranks, adamw_->first_moments.Flat(),
                                         adamw_->second_moments.Flat());
}

absl::Status HostOptimizer::AppendState(std::vector<formats::TensorData>& tensors,
                                        std::map<std::string, std::string>& metadata) {
  metadata[kStepsTaken] = absl::StrCat(steps_taken_);
  if (adamw_ != nullptr) AppendMoments(manifest_, adamw_->first_moments, adamw_->second_moments, tensors);
  if (onebit_ != nullptr) onebit_->AppendState(tensors, metadata);
  return absl::OkStatus();
}

void HostOptimizer::Saved() {
  if (onebit_ != nullptr) onebit_->DropGathered();
}

absl::Status HostOptimizer::LoadState(const formats::SafetensorsFile& file) {
  ASSIGN_OR_RETURN(steps_taken_, ReadStepsTaken(file));
  if (adamw_ != nullptr) {
    RETURN_IF_ERROR(ReadMoments(manifest_, file, adamw_->first_moments, adamw_->second_moments, part_firsts_));
  }
  return onebit_ == nullptr ? absl::OkStatus() : onebit_->LoadState(file);
}

std::optional<core::OffloadProgress> HostOptimizer::progress() const {
  if (adamw_ == nullptr) return std::nullopt;
  const offload::SubgroupPlan& plan = adamw_->update.plan();
  return core::OffloadProgress{.k = plan.k,
                               .subgroup = plan.subgroup,
                               .reason = plan.reason,
                               .predicted_s = plan.predicted_s,
                               .measured_s = adamw_->measured_s,
                               .waited_s = bus_.waited_s()};
}

void HostOptimizer::StepSgd(double lr, float gradient_scale) {
  bus_.BeginUpdate();
  bus_.AwaitCopied({0, std::ssize(parameters_.Flat())});
  for (int i = 0; i < gradients_.size(); ++i) {
    const double decay = Decays(manifest_[i]) ? config_.weight_decay : 0;
    offload::SgdStep({.lr = lr, .weight_decay = decay, .gradient_scale = gradient_scale}, gradients_[i],
                     parameters_[i]);
  }
  bus_.EndUpdate();
}

absl::Status HostOptimizer::Step(core::Step t, double sum_of_squares) {
  const float gradient_scale = ClipFactor(config_.clip, sum_of_squares);
  ++steps_taken_;
  const double lr = rate().At(t);
  if (adamw_ == nullptr) {
    StepSgd(lr, gradient_scale);
    return absl::OkStatus();
  }
  const bool frozen = onebit_ != nullptr && onebit_->frozen();
  if (frozen) RETURN_IF_ERROR(onebit_->FinishStep(gradients_.Flat(), gradient_scale));
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(adamw_->update.Step({.lr = lr,
                                       .beta1 = config_.beta1,
                                       .beta2 = config_.beta2,
                                       .weight_decay = config_.weight_decay,
                                       .gradient_scale = gradient_scale,
                                       .frozen_at = frozen ? onebit_->frozen_at() : 0},
                                      steps_taken_, frozen ? std::span<const float>() : gradients_.Flat()));
  const double seconds = core::SystemClock().SecondsSince(begin);
  AddToLateMean(seconds, adamw_->measured_s);
  if (onebit_ != nullptr && !frozen) onebit_->NoteWarmupStep(steps_taken_, t);
  return absl::OkStatus();
}

}  // namespace causeway::worker
