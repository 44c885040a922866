// The stages of a Llama on one device of a pipeline, on a GPU: operations are computed there, everything else is on the
// host.
//
//   BeginStep: θ ─► device    F, I, W, B on the device ◄── messages through the host ──►    EndStep: gradients ─► host
//                                                                          A: the gradients of its stage, earlier
//
// Each micro-batch in flight has its own buffers, as many as the schedule has in flight at once. The optimizer and its
// state are on the host, as with offload.k: cpu. Every operation is waited for. One owner thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "worker/device/compute_backend.h"
#include "worker/model/gpu_llama.h"
#include "worker/parallel/micro_batches.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/stage_values.h"

namespace causeway::worker {

class GpuStages final : public ModelStages {
 public:
  // INVALID_ARGUMENT: shards, which devices do not support yet. RESOURCE_EXHAUSTED: device memory.
  // `recompute`: none: the first level that fits into memory.
  static absl::StatusOr<std::unique_ptr<ModelStages>> Make(const StagesRequest& request, ValueType type,
                                                           std::optional<Recompute> recompute,
                                                           std::shared_ptr<ComputeBackend> backend);

  int64_t message_values() const override { return message_values_; }
  absl::Status BeginStep(const Batch& batch, float scale) override;
  absl::Status EndStep() override;
  double loss() const override { return loss_; }

  void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) override;
  void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) override;
  void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                     std::span<float> dinput) override;
  void BackwardWeight(const plan::Operation& operation) override;
  absl::Status Deliver(int stage) override;

 private:
  GpuStages(const StagesRequest& request, ValueType type, std::shared_ptr<ComputeBackend> backend);

  absl::Status Allocate(const StagesRequest& request, ValueType type, Recompute recompute);
  GpuLlama& InFlight(const plan::Operation& operation) const { return *in_flight_.at(MicroBatches::KeyOf(operation)); }
  void End(const plan::Operation& operation);

  const std::shared_ptr<ComputeBackend> backend_;  // first: the others' memory is its
  StageValues values_;
  const int64_t message_values_;
  MicroBatches batches_;
  std::map<int, std::vector<int>> stages_;  // its gradients, as LlamaStage indexes them
  std::vector<std::unique_ptr<GpuLlama>> all_;
  std::map<int, std::vector<GpuLlama*>> idle_;  // by stage
  std::map<MicroBatches::Key, GpuLlama*> in_flight_;
  std::map<GpuLlama*, int> losses_;  // micro-batches whose loss each has from this step
  std::set<int> read_;               // stages whose gradients the host has
  absl::Status begun_;               // of all micro-batches
  float scale_ = 1;
  double loss_ = 0;
};

}  // namespace causeway::worker
