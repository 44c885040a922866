#include "worker/optimizer/device_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "offload/adamw.h"

namespace causeway::worker {

using offload::Queue;

absl::StatusOr<std::unique_ptr<DeviceOptimizer>> DeviceOptimizer::Make(const core::RunConfig& config,
                                                                       const DeviceState::Setting& setting,
                                                                       ComputeBackend* backend) {
  if (config.inner.optimizer == core::InnerOptimizerKind::kOnebitAdam) {
    return absl::InvalidArgumentError(absl::StrCat("--device=", backend->device().name(),
                                                   ": expected inner.optimizer: adamw or sgd, which are what devices "
                                                   "have yet, got onebit_adam; use --device=cpu"));
  }
  DeviceState::Setting of_state = setting;
  of_state.moments = core::HasMoments(config.inner.optimizer) ? 2 : 0;
  ASSIGN_OR_RETURN(auto state, DeviceState::Make(of_state, backend));
  return std::unique_ptr<DeviceOptimizer>(
      new DeviceOptimizer(config, setting.manifest, setting.residency.reason, std::move(state), backend));
}

DeviceOptimizer::DeviceOptimizer(const core::RunConfig& config, const core::Manifest& manifest,
                                 const std::string& reason, std::unique_ptr<DeviceState> state, ComputeBackend* backend)
    : InnerOptimizer(config),
      config_(config.inner),
      manifest_(manifest),
      reason_(reason),
      backend_(backend),
      state_(std::move(state)) {}

absl::Status DeviceOptimizer::Step(core::Step t, double sum_of_squares) {
  ++steps_taken_;
  offload::AdamWParameters adamw{.lr = rate().At(t),
                                 .beta1 = config_.beta1,
                                 .beta2 = config_.beta2,
                                 .weight_decay = config_.weight_decay,
                                 .gradient_scale = ClipFactor(config_.clip, sum_of_squares)};
  const offload::AdamWParameters of_all = adamw;
  const int64_t resident = state_->resident();
  const auto first = [this](size_t tensor) { return state_->First(static_cast<int>(tensor)); };
  for (size_t i = 0; i < manifest_.size() && first(i) < resident;) {
    size_t end = i + 1;  // tensors of one rule, side by side
    while (end < manifest_.size() && Decays(manifest_[end]) == Decays(manifest_[i])) ++end;
    adamw.weight_decay = Decays(manifest_[i]) ? config_.weight_decay : 0;
    StepPart(adamw, first(i), std::min(first(end), resident) - first(i));
    i = end;
  }
  HostedState* const hosted = state_->hosted();
  return hosted == nullptr ? backend_->device().status() : hosted->Step(of_all, steps_taken_);
}

void DeviceOptimizer::StepPart(const offload::AdamWParameters& adamw, int64_t first, int64_t count) {
  if (!has_moments()) {
    backend_->Launch(Queue::kCompute, SgdKernel{.gradient = state_->gradients() + first,
                                                .parameters = state_->parameters() + first,
                                                .count = count,
                                                .minus_lr = static_cast<float>(-adamw.lr),
                                                .minus_decay = static_cast<float>(-adamw.lr * adamw.weight_decay),
                                                .gradient_scale = adamw.gradient_scale});
    state_->Changed(first, count).IgnoreError();  // shows in the device's status
    return;
  }
  const offload::AdamWArrays all{.gradient = state_->gradients(),
                                 .first_moment = state_->moments(0),
                                 .second_moment = state_->moments(1),
                                 .parameters = state_->parameters(),
                                 .bfloat16_copy = state_->bfloat16_copy(),
                                 .count = state_->resident()};
  backend_->device().AdamW(Queue::kCompute, MakeConstants(adamw, steps_taken_), all.Part(first, count));
}

absl::Status DeviceOptimizer::AppendState(std::vector<formats::TensorData>& tensors,
                                          std::map<std::string, std::string>& metadata) {
  metadata.merge(backend_->product_choices());
  metadata[kStepsTaken] = absl::StrCat(steps_taken_);
  if (!has_moments()) return absl::OkStatus();
  host_moments_.clear();
  for (int which : {0, 1}) {
    TensorValues& values = host_moments_.emplace_back(manifest_);
    RETURN_IF_ERROR(state_->ReadMoments(which, values.Flat()));
  }
  AppendMoments(manifest_, host_moments_[0], host_moments_[1], tensors);
  return absl::OkStatus();
}

absl::Status DeviceOptimizer::LoadState(const formats::SafetensorsFile& file) {
  backend_->SetProductChoices(file.metadata());
  ASSIGN_OR_RETURN(steps_taken_, ReadStepsTaken(file));
  if (!has_moments()) return absl::OkStatus();
  TensorValues first(manifest_), second(manifest_);
  RETURN_IF_ERROR(ReadMoments(manifest_, file, first, second));
  RETURN_IF_ERROR(state_->WriteMoments(0, first.Flat()));
  return state_->WriteMoments(1, second.Flat());
}

std::optional<core::OffloadProgress> DeviceOptimizer::progress() const {
  core::OffloadProgress progress =
      state_->hosted() == nullptr ? core::OffloadProgress{.k = core::kResident} : state_->hosted()->progress();
  progress.reason = reason_;
  progress.resident = state_->resident();
  return progress;
}

}  // namespace causeway::worker
