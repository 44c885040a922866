// The stages of a Llama that a rank computes on the processor.
//
// Buffers are taken as the schedule requires; the loss is known when the last forward has run. One owner thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "worker/model/llama_stage.h"
#include "worker/parallel/micro_batches.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/sharded_tensors.h"

namespace causeway::worker {

// The layers' buffers of a pipeline's device, taken by the operations that need them and returned.
//
//   F takes a layer's activations ─► … ─► W (or B) gives them back; I takes a layer's gradients ─► W gives them back
//
// It grows to the largest number taken at once, which the schedule determines, and which the last step needed. One
// owner thread.
template <typename Buffers>
class BlockPool {
 public:
  explicit BlockPool(const LlamaShape& shape) : shape_(shape) {}

  std::vector<Buffers*> Take(int count) {
    while (std::ssize(free_) < count) {
      all_.push_back(std::make_unique<Buffers>(shape_));
      free_.push_back(all_.back().get());
    }
    std::vector<Buffers*> taken(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
    return taken;
  }
  void Give(std::vector<Buffers*>& taken) {
    free_.insert(free_.end(), taken.begin(), taken.end());
    taken.clear();
  }

  int64_t size() const { return std::ssize(all_); }  // the largest number taken at once

 private:
  const LlamaShape shape_;
  std::vector<std::unique_ptr<Buffers>> all_;
  std::vector<Buffers*> free_;
};

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
  std::optional<LayerGradients> scratch_;  // for B
  std::vector<float> below_;
  std::map<MicroBatches::Key, InFlight> in_flight_;
  std::vector<InFlight> idle_;  // unused ones, which keep their buffers
  float scale_ = 1;
  double loss_ = 0;
};

}  // namespace causeway::worker
