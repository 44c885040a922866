// The stages of a Llama that a rank computes on the processor.
//
// Buffers are taken as the schedule requires; the loss is known when the last forward has run. One owner thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/parallel/block_pool.h"
#include "worker/parallel/micro_batches.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/sharded_tensors.h"

namespace causeway::worker {

class LlamaStages final : public ModelStages {
 public:
  // The tensors outlive it.
  LlamaStages(const StagesRequest& request, StageTensors& tensors);

  int64_t message_values() const override { return stages_.begin()->second.message_values(); }
  absl::Status BeginStep(std::vector<PreparedBatch> parts, float scale) override;
  absl::Status EndStep() override { return absl::OkStatus(); }
  double loss() const override { return loss_; }
  const BlockPool<BlockActivations>& activations() const { return activations_; }

  void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) override;
  void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) override;
  void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                     std::span<float> dinput) override;
  void BackwardWeight(const plan::Operation& operation) override;

 private:
  struct InFlight {
    StageActivations kept;
    StageGradients between;
  };

  const LlamaStage& StageOf(const plan::Operation& operation) const { return stages_.at(operation.stage); }
  void End(const plan::Operation& operation);

  MicroBatches batches_;
  std::map<int, LlamaStage> stages_;
  StageTensors& tensors_;
  const LlamaStage::OnFinal on_final_;
  BlockPool<BlockActivations> activations_;
  BlockPool<LayerGradients> layer_gradients_;
  std::optional<LayerGradients> scratch_;  // of B
  std::vector<float> below_;
  std::map<MicroBatches::Key, InFlight> in_flight_;
  std::vector<InFlight> idle_;  // whose buffers stay
  float scale_ = 1;
  double loss_ = 0;
};

}  // namespace causeway::worker
