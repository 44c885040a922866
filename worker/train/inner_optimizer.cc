#include "worker/train/inner_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/multiversion.h"
#include "offload/adamw.h"

namespace causeway::worker {
namespace {

constexpr char kStepsTaken[] = "steps_taken";
const std::string kFirstMoment = "first_moment.";
const std::string kSecondMoment = "second_moment.";

}  // namespace

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

CAUSEWAY_MULTIVERSION
void ScaleValues(float factor, float* values, size_t size) {
  for (size_t i = 0; i < size; ++i) values[i] *= factor;
}

absl::Status CheckFinite(const core::TensorSpec& spec, std::span<const float> gradient, core::Step t) {
  const auto bad = std::find_if(gradient.begin(), gradient.end(), [](float g) { return !std::isfinite(g); });
  if (bad == gradient.end()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("gradient of %s is %f at index %d in step %d", spec.name, *bad, bad - gradient.begin(), t));
}

InnerOptimizer::InnerOptimizer(const core::InnerConfig& config, core::Step total_steps, const core::Manifest& manifest)
    : config_(config), total_steps_(total_steps), manifest_(manifest) {
  if (config.optimizer != core::InnerOptimizerKind::kAdamW) return;
  first_moments_.emplace(manifest);
  second_moments_.emplace(manifest);
}

absl::Status InnerOptimizer::Clip(core::Step t, TensorValues& gradients) const {
  double sum = 0;
  for (int i = 0; i < gradients.size(); ++i) {
    const double squares = SumOfSquares(gradients[i].data(), gradients[i].size());
    if (!std::isfinite(squares)) return CheckFinite(manifest_[i], gradients[i], t);
    sum += squares;
  }
  const double norm = std::sqrt(sum);
  if (config_.clip == 0 || norm <= config_.clip) return absl::OkStatus();
  const float factor = static_cast<float>(config_.clip / norm);
  for (int i = 0; i < gradients.size(); ++i) ScaleValues(factor, gradients[i].data(), gradients[i].size());
  return absl::OkStatus();
}

void InnerOptimizer::AppendState(std::vector<formats::TensorData>& tensors,
                                 std::map<std::string, std::string>& metadata) const {
  metadata[kStepsTaken] = absl::StrCat(steps_taken_);
  for (size_t i = 0; first_moments_ && i < manifest_.size(); ++i) {
    const auto index = static_cast<int>(i);
    tensors.push_back({kFirstMoment + manifest_[i].name, manifest_[i].shape, (*first_moments_)[index]});
    tensors.push_back({kSecondMoment + manifest_[i].name, manifest_[i].shape, (*second_moments_)[index]});
  }
}

absl::Status InnerOptimizer::LoadState(const formats::SafetensorsFile& file) {
  const auto steps = file.metadata().find(kStepsTaken);
  if (steps == file.metadata().end() || !absl::SimpleAtoi(steps->second, &steps_taken_)) {
    return absl::DataLossError(absl::StrCat(file.path(), ": its metadata has no ", kStepsTaken));
  }
  for (size_t i = 0; first_moments_ && i < manifest_.size(); ++i) {
    const auto index = static_cast<int>(i);
    RETURN_IF_ERROR(file.Read(kFirstMoment + manifest_[i].name, (*first_moments_)[index]));
    RETURN_IF_ERROR(file.Read(kSecondMoment + manifest_[i].name, (*second_moments_)[index]));
  }
  return absl::OkStatus();
}

absl::Status InnerOptimizer::Step(core::Step t, TensorValues& gradients, TensorValues& parameters) {
  RETURN_IF_ERROR(Clip(t, gradients));
  ++steps_taken_;
  const double lr = LearningRate(config_, total_steps_, t);
  for (int i = 0; i < gradients.size(); ++i) {
    const double decay = manifest_[i].shape.size() >= 2 ? config_.weight_decay : 0;
    if (config_.optimizer == core::InnerOptimizerKind::kSgd) {
      offload::SgdStep({.lr = lr, .weight_decay = decay}, gradients[i], parameters[i]);
      continue;
    }
    const offload::AdamWConstants constants = offload::MakeConstants(
        {.lr = lr, .beta1 = config_.beta1, .beta2 = config_.beta2, .weight_decay = decay}, steps_taken_);
    offload::AdamWStep(constants, {.gradient = gradients[i].data(),
                                   .first_moment = (*first_moments_)[i].data(),
                                   .second_moment = (*second_moments_)[i].data(),
                                   .parameters = parameters[i].data(),
                                   .count = std::ssize(parameters[i])});
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
