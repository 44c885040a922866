// AdamW or SGD of a model on a device, wherever its state lies (worker/optimizer/device_state.h).
//
//   gradients ─► clip: a factor ─► AdamW at lr(t) ─► θ, and its bfloat16 copy where the model computes with that
//
// The arithmetic of a value is offload/adamw.h, as on the CPU: the same gradients give the same bits. Its
// checkpoint is that of HostOptimizer: a site may continue on the other; it also keeps the algorithms that the device
// has chosen for its matrix products. One owner thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "formats/safetensors.h"
#include "worker/device/compute_backend.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/device_state.h"
#include "worker/optimizer/inner_optimizer.h"

namespace causeway::worker {

class DeviceOptimizer final : public InnerOptimizer {
 public:
  // INVALID_ARGUMENT: an inner optimizer that devices do not support yet. RESOURCE_EXHAUSTED: memory.
  // The setting's moments follow from the optimizer.
  static absl::StatusOr<std::unique_ptr<DeviceOptimizer>> Make(const core::RunConfig& config,
                                                               const DeviceState::Setting& setting,
                                                               ComputeBackend* backend);

  DeviceState& state() const { return *state_; }

  absl::Status Step(core::Step t, double sum_of_squares) override;  // queued on the device, done on the host

  std::optional<core::OffloadProgress> progress() const override;
  double last_update_s() const override { return state_->hosted() == nullptr ? 0 : state_->hosted()->last_update_s(); }

  absl::Status AppendState(std::vector<formats::TensorData>& tensors,
                           std::map<std::string, std::string>& metadata) override;
  void Saved() override { host_moments_.clear(); }
  absl::Status LoadState(const formats::SafetensorsFile& file) override;

 private:
  DeviceOptimizer(const core::RunConfig& config, const core::Manifest& manifest, const std::string& reason,
                  std::unique_ptr<DeviceState> state, ComputeBackend* backend);

  bool has_moments() const { return core::HasMoments(config_.optimizer); }
  // Updates resident parameters that share one rule.
  void StepPart(const offload::AdamWParameters& adamw, int64_t first, int64_t count);

  const core::InnerConfig config_;
  const core::Manifest manifest_;
  const std::string reason_;  // why the state lies where it does
  ComputeBackend* const backend_;
  const std::unique_ptr<DeviceState> state_;
  int64_t steps_taken_ = 0;
  std::vector<TensorValues> host_moments_;  // while they are saved
};

}  // namespace causeway::worker
