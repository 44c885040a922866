// AdamW or SGD whose parameters, gradients and moments all lie on the device.
//
//   gradients ─► Σ g² by a kernel ─► the norm on the host ─► clip: a factor ─► AdamW on the device at lr(t) ─► θ, and
//   its copy in bfloat16 where the model computes with that
//
// The arithmetic of a value is offload/adamw_value.h, as on the CPU: the same gradients give the same bits. A
// checkpoint of it is one of worker/train/inner_optimizer.h: a site may go on on the other. One owner thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "formats/safetensors.h"
#include "worker/gpu/arena.h"
#include "worker/gpu/compute_backend.h"
#include "worker/train/tensor_values.h"
#include "worker/train/trainer_file.h"

namespace causeway::worker {

class DeviceOptimizer final : public OptimizerState {
 public:
  // INVALID_ARGUMENT: an inner optimizer that no device has yet. RESOURCE_EXHAUSTED: device memory.
  static absl::StatusOr<std::unique_ptr<DeviceOptimizer>> Make(const core::RunConfig& config,
                                                               const core::Manifest& manifest, ValueType type,
                                                               ComputeBackend* backend);

  int64_t count() const { return count_; }
  float* parameters() const { return arena_.At<float>(parameters_); }
  float* gradients() const { return arena_.At<float>(gradients_); }
  // The parameters as the model computes with them: these, or a copy in bfloat16, which Step and Changed keep.
  void* computed() const { return arena_.At<char>(computed_); }
  int64_t First(int tensor) const { return firsts_[tensor]; }
  const Arena& arena() const { return arena_; }

  // ‖g‖² of all gradients; waits for them. DATA_LOSS names the first that is not finite.
  absl::StatusOr<double> SumOfSquares(core::Step t);
  // Queues step t, with gradients of that ‖g‖².
  void Step(core::Step t, double sum_of_squares);

  // Something else has changed these parameters.
  void Changed(int64_t first, int64_t count);

  absl::Status Await();  // all that is queued

  // Whole arrays, to the host and back; wait until they are there.
  absl::Status Read(const float* from, std::span<float> to);
  absl::Status Write(std::span<const float> from, float* to);

  absl::Status AppendState(std::vector<formats::TensorData>& tensors,
                           std::map<std::string, std::string>& metadata) override;
  void Saved() override { host_moments_.clear(); }
  absl::Status LoadState(const formats::SafetensorsFile& file) override;

 private:
  DeviceOptimizer(const core::RunConfig& config, const core::Manifest& manifest, ValueType type,
                  ComputeBackend* backend);

  int num_moments() const { return config_.optimizer == core::InnerOptimizerKind::kSgd ? 0 : 2; }
  // A step of parameters that take one rule.
  void StepPart(const offload::AdamWParameters& adamw, int64_t first, int64_t count);
  float* moments(int which) const { return arena_.At<float>(moments_[which]); }

  const core::InnerConfig config_;
  const core::Step total_steps_;
  const core::Manifest manifest_;
  const ValueType type_;
  ComputeBackend* const backend_;
  const std::vector<int64_t> firsts_;
  const int64_t count_;
  Arena arena_;
  Arena::Place parameters_ = 0, gradients_ = 0, computed_ = 0, moments_[2] = {}, sums_ = 0;
  offload::Device::Event done_;
  int64_t steps_taken_ = 0;
  std::vector<double> host_sums_;
  std::vector<TensorValues> host_moments_;  // while they are saved
};

}  // namespace causeway::worker
