#include "worker/parallel/llama_stages.h"

#include <utility>

#include "worker/parallel/pipeline_place.h"

namespace causeway::worker {

LlamaStages::LlamaStages(const StagesRequest& request, StageTensors& tensors)
    : batches_(request.file.schedule),
      tensors_(tensors),
      on_final_(request.on_final),
      activations_(LlamaShape(request.config, request.batch_rows, request.sequence)),
      layer_gradients_(LlamaShape(request.config, request.batch_rows, request.sequence)) {
  for (const std::vector<int>& copy : request.file.schedule.place) {
    for (size_t s = 0; s < copy.size(); ++s) {
      if (copy[s] != request.device) continue;
      stages_.try_emplace(static_cast<int>(s), request.config, request.batch_rows, request.sequence,
                          RangeOf(request.file.split[s]));
    }
  }
}

absl::Status LlamaStages::BeginStep(std::vector<PreparedBatch> parts, float scale) {
  batches_.Begin(std::move(parts));
  scale_ = scale / static_cast<float>(batches_.count());
  loss_ = 0;
  return absl::OkStatus();
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
  loss_ +=
      stage.Forward(tensors_.weights(), batches_.Of(operation).batch, input, flight.kept, output) / batches_.count();
  in_flight_.emplace(MicroBatches::KeyOf(operation), std::move(flight));
}

void LlamaStages::Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) {
  const LlamaStage& stage = StageOf(operation);
  if (!scratch_) {
    scratch_.emplace(stage.shape());
    below_.resize(static_cast<size_t>(stage.message_values()));
  }
  const bool last = operation.micro_batch + 1 == batches_.of_copy();
  stage.Backward(tensors_.weights(), batches_.Of(operation).batch, scale_, doutput,
                 in_flight_.at(MicroBatches::KeyOf(operation)).kept, *scratch_, below_,
                 tensors_.GradientsOf(operation.stage), dinput, last ? on_final_ : nullptr);
  End(operation);
}

void LlamaStages::BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                                std::span<float> dinput) {
  const LlamaStage& stage = StageOf(operation);
  InFlight& flight = in_flight_.at(MicroBatches::KeyOf(operation));
  flight.between.layers = layer_gradients_.Take(stage.range().layers());
  stage.Prepare(flight.between);
  stage.BackwardInput(tensors_.weights(), batches_.Of(operation).batch, scale_, doutput, flight.kept, flight.between,
                      dinput);
}

void LlamaStages::BackwardWeight(const plan::Operation& operation) {
  InFlight& flight = in_flight_.at(MicroBatches::KeyOf(operation));
  StageOf(operation).BackwardWeight(batches_.Of(operation).batch, flight.kept, flight.between,
                                    tensors_.GradientsOf(operation.stage));
  End(operation);
}

void LlamaStages::End(const plan::Operation& operation) {
  auto flight = in_flight_.extract(MicroBatches::KeyOf(operation));
  activations_.Give(flight.mapped().kept.blocks);
  layer_gradients_.Give(flight.mapped().between.layers);
  idle_.push_back(std::move(flight.mapped()));
}

}  // namespace causeway::worker
