// The Llamas of a rank on a device: of each of its stages as many as its program has micro-batches in flight at once,
// each with buffers of its own.
//
//   one stage   the whole model, once       a pipeline   a model of a stage for each micro-batch in flight
//
// One owner thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/pipeline_file.h"
#include "worker/device/compute_backend.h"
#include "worker/model/gpu_llama.h"
#include "worker/parallel/model_stages.h"

namespace causeway::worker {

class StageModels {
 public:
  // `firsts`: where each tensor begins in the flat arrays, and the tied head's gradient. INVALID_ARGUMENT: the device
  // does not take the shape. The backend outlives it.
  static absl::StatusOr<StageModels> Plan(const StagesRequest& request, ValueType type,
                                          const std::vector<int64_t>& firsts, ComputeBackend* backend);

  const GpuLlama::Options& options() const { return models_.front().options; }  // but for the stage, those of all

  // The device memory that Make takes.
  absl::StatusOr<int64_t> Bytes(Recompute recompute, int64_t room_bytes);
  // `room_bytes`: of each room for updates, which lie in one of the models. RESOURCE_EXHAUSTED: device memory.
  absl::Status Make(Recompute recompute, int64_t room_bytes);

  GpuLlama& first() const { return *models_.front().llama; }
  GpuLlama::Rooms rooms() const { return first().rooms(); }
  std::string Description() const { return first().arena().Description(); }
  std::map<int, std::vector<GpuLlama*>> of_stages() const;

 private:
  struct Model {
    int stage = 0;
    GpuLlama::Options options;
    std::unique_ptr<GpuLlama> llama;
  };

  StageModels(const core::LlamaConfig& config, ComputeBackend* backend) : config_(config), backend_(backend) {}

  const core::LlamaConfig config_;
  ComputeBackend* const backend_;
  std::vector<Model> models_;
};

}  // namespace causeway::worker
