#include "worker/parallel/gpu_stages.h"

#include <algorithm>
#include <utility>

#include "core/bfloat16.h"
#include "core/check.h"
#include "worker/parallel/device_evaluator.h"

namespace causeway::worker {

using offload::Queue;

void StageMessages::Await() {
  backend_->device().Record(done_, Queue::kCompute);
  backend_->device().AwaitOnHost(done_);
}

void StageMessages::Upload(std::span<const float> message, void* to) {
  if (message.empty()) return;
  if (type_ == ValueType::kFloat32) {
    backend_->device().CopyToDevice(Queue::kCompute, to, message.data(), message.size_bytes());
    return;
  }
  staged_.resize(message.size());
  std::ranges::transform(message, staged_.begin(), core::ToBfloat16);
  backend_->device().CopyToDevice(Queue::kCompute, to, staged_.data(), staged_.size() * sizeof(uint16_t));
}

void StageMessages::Download(const void* from, std::span<float> message) {
  if (message.empty()) return;
  if (type_ == ValueType::kFloat32) {
    backend_->device().CopyToHost(Queue::kCompute, message.data(), from, message.size_bytes());
    Await();
    return;
  }
  Await();  // the staged values have arrived
  staged_.resize(message.size());
  backend_->device().CopyToHost(Queue::kCompute, staged_.data(), from, staged_.size() * sizeof(uint16_t));
  Await();
  std::ranges::transform(staged_, message.begin(), core::FromBfloat16);
}

GpuStages::GpuStages(const StagesRequest& request, StageModels models, ValueType type, int ranks, DeviceState* state,
                     ComputeBackend* backend)
    : state_(state),
      backend_(backend),
      models_(std::move(models)),
      whole_(request.file.schedule.stages == 1),
      waits_(request.timed),
      message_values_(request.batch_rows * request.sequence * request.config.hidden_size),
      on_queued_(ranks == 1 ? request.on_final : nullptr),
      on_done_(ranks == 1 ? nullptr : request.on_final),
      messages_(type, backend),
      batches_(request.file.schedule),
      idle_(models_.of_stages()) {}

std::unique_ptr<Evaluator> GpuStages::NewEvaluator(const HeldOut& held_out) const {
  if (!whole_) return nullptr;
  const GpuLlama::Options& options = models_.options();
  return std::make_unique<DeviceEvaluator>(held_out, options.batch_rows, options.type, state_, &models_.first(),
                                           backend_);
}

// ---- A step ----

absl::Status GpuStages::BeginStep(std::vector<PreparedBatch> parts, float scale) {
  batches_.Begin(std::move(parts));
  scale_ = scale / static_cast<float>(batches_.count());
  begun_ = absl::OkStatus();
  losses_.clear();
  return backend_->device().status();
}

absl::Status GpuStages::EndStep() {
  RETURN_IF_ERROR(begun_);
  loss_ = 0;
  for (const auto& [llama, count] : losses_) {  // known before backward is over
    ASSIGN_OR_RETURN(const double mean, llama->Loss());
    loss_ += mean * count / batches_.count();
  }
  losses_.clear();
  return on_done_ == nullptr ? absl::OkStatus() : last_->AwaitGradients(on_done_);
}

// ---- Operations ----

void GpuStages::Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) {
  std::vector<GpuLlama*>& idle = idle_.at(operation.stage);
  CHECK(!idle.empty());
  GpuLlama* const llama = idle.back();
  idle.pop_back();
  in_flight_[MicroBatches::KeyOf(operation)] = llama;
  begun_.Update(llama->Begin(batches_.Of(operation)));
  messages_.Upload(input, llama->input());
  llama->Forward(state_->computed());
  if (output.empty()) ++losses_[llama];
  messages_.Download(llama->output(), output);
  Computed();
}

void GpuStages::Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) {
  GpuLlama& llama = InFlight(operation);
  messages_.Upload(doutput, llama.stream());
  const bool last = operation.micro_batch + 1 == batches_.of_copy();
  if (last) last_ = &llama;
  llama.Backward(state_->computed(), state_->gradients(), scale_, last ? on_queued_ : nullptr);
  messages_.Download(llama.stream(), dinput);
  Computed();
  End(operation);
}

void GpuStages::BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                              std::span<float> dinput) {
  GpuLlama& llama = InFlight(operation);
  messages_.Upload(doutput, llama.stream());
  llama.BackwardInput(state_->computed(), scale_);
  messages_.Download(llama.stream(), dinput);
  Computed();
}

void GpuStages::BackwardWeight(const plan::Operation& operation) {
  InFlight(operation).BackwardWeight(state_->computed(), state_->gradients());
  Computed();
  End(operation);
}

void GpuStages::End(const plan::Operation& operation) {
  idle_.at(operation.stage).push_back(in_flight_.extract(MicroBatches::KeyOf(operation)).mapped());
}

}  // namespace causeway::worker
