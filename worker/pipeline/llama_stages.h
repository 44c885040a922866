// The stages of a Llama on one device of a pipeline, on the processor.
//
//   BeginStep(batch) ─► Forward, Backward, … as the schedule has them ─► gradients, summed by micro-batch ─► loss()
//
// A device has at most one copy of each stage, and one of the embedding and the head each, so that each sum has a place
// of its own. One owner thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "core/llama_config.h"
#include "plan/pipeline_file.h"
#include "worker/pipeline/block_pool.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/train/llama_stage.h"
#include "worker/train/tensor_values.h"

namespace causeway::worker {

StageRange RangeOf(const plan::StageLayers& layers);

class LlamaStages final : public StageRunner {
 public:
  struct Sizes {
    int64_t batch_rows = 0;  // of a micro-batch
    int64_t sequence = 0;
  };

  // `weights` and `gradients` are indexed as LlamaStage says; they outlive the object, and what they view may change
  // between operations. `synchronize` is called for G, R and A.
  LlamaStages(const core::LlamaConfig& config, const plan::PipelineFile& file, int device, Sizes sizes,
              const Tensors& weights, const MutableTensors& gradients,
              std::function<absl::Status(const plan::Operation&)> synchronize);

  int64_t message_values() const;
  // `batch` has all micro-batches, of which copy c has the c-th share; `scale`: of each one's mean loss.
  void BeginStep(const Batch& batch, float scale);
  double loss() const { return loss_; }  // this device's part of the mean loss
  const BlockPool<BlockActivations>& activations() const { return activations_; }
  const BlockPool<LayerGradients>& layer_gradients() const { return layer_gradients_; }

  void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) override;
  void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) override;
  void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                     std::span<float> dinput) override;
  void BackwardWeight(const plan::Operation& operation) override;
  absl::Status Synchronize(const plan::Operation& operation) override { return synchronize_(operation); }

 private:
  struct InFlight {
    StageActivations kept;
    StageGradients between;
  };
  using Key = std::pair<int, int>;  // stage, micro-batch: a device has one copy of a stage

  static Key KeyOf(const plan::Operation& operation) { return {operation.stage, operation.micro_batch}; }
  const LlamaStage& StageOf(const plan::Operation& operation) const { return stages_.at(operation.stage); }
  const Batch& BatchOf(const plan::Operation& operation) const {
    return batches_[static_cast<size_t>(operation.copy * of_copy_ + operation.micro_batch)];
  }
  void End(const plan::Operation& operation);

  const int micro_batches_, of_copy_;
  std::map<int, LlamaStage> stages_;
  const Tensors& weights_;
  const MutableTensors& gradients_;
  const std::function<absl::Status(const plan::Operation&)> synchronize_;
  BlockPool<BlockActivations> activations_;
  BlockPool<LayerGradients> layer_gradients_;
  std::optional<LayerGradients> scratch_;  // of B
  std::vector<float> below_;
  std::map<Key, InFlight> in_flight_;
  std::vector<InFlight> idle_;  // whose buffers stay
  std::vector<Batch> batches_;
  float scale_ = 1;
  double loss_ = 0;
};

}  // namespace causeway::worker
