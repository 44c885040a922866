#include "worker/pipeline/llama_stages.h"

#include <utility>

#include "core/check.h"

namespace causeway::worker {

StageRange RangeOf(const plan::StageLayers& layers) {
  return {.first = layers.first, .last = layers.last, .embedding = layers.embedding, .head = layers.head};
}

LlamaStages::LlamaStages(const core::LlamaConfig& config, const plan::PipelineFile& file, int device, Sizes sizes,
                         const Tensors& weights, const MutableTensors& gradients,
                         std::function<absl::Status(const plan::Operation&)> synchronize)
    : micro_batches_(file.schedule.micro_batches),
      of_copy_(file.schedule.micro_batches_of_copy()),
      weights_(weights),
      gradients_(gradients),
      synchronize_(std::move(synchronize)),
      activations_(LlamaShape(config, sizes.batch_rows, sizes.sequence)),
      layer_gradients_(LlamaShape(config, sizes.batch_rows, sizes.sequence)) {
  for (const std::vector<int>& copy : file.schedule.place) {
    for (size_t s = 0; s < copy.size(); ++s) {
      if (copy[s] != device) continue;
      stages_.try_emplace(static_cast<int>(s), config, sizes.batch_rows, sizes.sequence, RangeOf(file.split[s]));
    }
  }
}

int64_t LlamaStages::message_values() const { return stages_.begin()->second.message_values(); }

void LlamaStages::BeginStep(const Batch& batch, float scale) {
  batches_.clear();
  for (int i = 0; i < micro_batches_; ++i) batches_.push_back(Part(batch, i, micro_batches_));
  scale_ = scale / static_cast<float>(micro_batches_);
  loss_ = 0;
}

void LlamaStages::Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) {
  InFlight flight;
  if (!idle_.empty()) {
    flight = std::move(idle_.back());
    idle_.pop_back();
  }
  const LlamaStage& stage = StageOf(operation);
  flight.kept.blocks = activations_.Take(stage.range().layers());
  stage.Prepare(flight.kept);
  loss_ += stage.Forward(weights_, BatchOf(operation), input, flight.kept, output) / micro_batches_;
  in_flight_.emplace(KeyOf(operation), std::move(flight));
}

void LlamaStages::Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) {
  const LlamaStage& stage = StageOf(operation);
  if (!scratch_) {
    scratch_.emplace(stage.shape());
    below_.resize(static_cast<size_t>(stage.message_values()));
  }
  stage.Backward(weights_, BatchOf(operation), scale_, doutput, in_flight_.at(KeyOf(operation)).kept, *scratch_, below_,
                 gradients_, dinput);
  End(operation);
}

void LlamaStages::BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                                std::span<float> dinput) {
  const LlamaStage& stage = StageOf(operation);
  InFlight& flight = in_flight_.at(KeyOf(operation));
  flight.between.layers = layer_gradients_.Take(stage.range().layers());
  stage.Prepare(flight.between);
  stage.BackwardInput(weights_, BatchOf(operation), scale_, doutput, flight.kept, flight.between, dinput);
}

void LlamaStages::BackwardWeight(const plan::Operation& operation) {
  InFlight& flight = in_flight_.at(KeyOf(operation));
  StageOf(operation).BackwardWeight(BatchOf(operation), flight.kept, flight.between, gradients_);
  End(operation);
}

void LlamaStages::End(const plan::Operation& operation) {
  auto flight = in_flight_.extract(KeyOf(operation));
  activations_.Give(flight.mapped().kept.blocks);
  layer_gradients_.Give(flight.mapped().between.layers);
  idle_.push_back(std::move(flight.mapped()));
}

}  // namespace causeway::worker
