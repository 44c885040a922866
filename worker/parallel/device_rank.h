// A rank's device: its memory, and the parts of a trainer that lie and run there.
//
//   Open: how much is recomputed, and where the optimizer's state lies, so that all fits (device_state.h)
//         ─► StageModels ─► DeviceOptimizer, in rooms of dead activations ─► DeviceTensors, GpuStages
//
// One owner thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "offload/host_array.h"
#include "worker/device/compute_backend.h"
#include "worker/device/device_encoder.h"
#include "worker/model/gpu_layers.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/rank_parts.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

struct DeviceSettings {
  ValueType type = ValueType::kFloat32;  // the type that the model computes with
  std::optional<Recompute> recompute;    // none: the first level that fits into memory
  std::optional<EncodeWay> encode;       // how contributions are encoded; nullopt: the fastest way
  int64_t bucket_bytes = GradientBuckets::kBytes;
  bool overlaps = true;  // as in DeviceState::Setting
};

class DeviceRank {
 public:
  // `collectives`: of the site's ranks, in device memory; null: gradients are accessible to the host's collectives.
  explicit DeviceRank(std::unique_ptr<ComputeBackend> backend, const DeviceSettings& settings = {},
                      std::unique_ptr<Collectives> collectives = nullptr)
      : settings_(settings),
        backend_(std::move(backend)),
        pool_(&backend_->device()),
        collectives_(std::move(collectives)) {}

  // The ranks of a site, with gradients on this device.
  TrainerRanks With(TrainerRanks ranks) const;

  struct Request {
    const core::RunConfig& config;
    const TrainerRanks& ranks;
    const StagesRequest& stages;
    const std::string& calibration_path;
    bool evaluates = false;  // the run holds something out
  };
  // This object outlives the parts. INVALID_ARGUMENT: a model, schedule or setting that the device does not take.
  // RESOURCE_EXHAUSTED: memory.
  absl::StatusOr<RankParts> Open(Request request);

 private:
  const DeviceSettings settings_;
  const std::unique_ptr<ComputeBackend> backend_;  // first: the members below use its memory
  offload::PinnedPool pool_;
  const std::unique_ptr<Collectives> collectives_;  // null: none
};

}  // namespace causeway::worker
