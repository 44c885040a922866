#include "worker/parallel/gpu_stages.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "worker/parallel/pipeline_place.h"

namespace causeway::worker {
namespace {

// The maximum number of micro-batches that a device has in flight, for each of its stages.
std::map<int, int> MostInFlight(const std::vector<plan::ScheduleStep>& list) {
  using Kind = plan::OperationKind;
  std::map<int, int> now, most;
  const auto count = [&](const plan::Operation& operation) {
    int& here = now[operation.stage];
    if (operation.kind == Kind::kForward) ++here;
    most[operation.stage] = std::max(most[operation.stage], here);
    if (operation.kind == Kind::kBackward || operation.kind == Kind::kWeight) --here;
  };
  for (const plan::ScheduleStep& step : list) {
    count(step.first);
    if (step.second) count(*step.second);
  }
  return most;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelStages>> GpuStages::Make(const StagesRequest& request, ValueType type,
                                                             std::optional<Recompute> recompute,
                                                             std::shared_ptr<ComputeBackend> backend) {
  if (request.file.shards) {
    return absl::InvalidArgumentError("--pipeline: expected width N copies on a device, got shards");
  }
  absl::Status no_memory;
  for (const Recompute level : kAllRecompute) {
    if (recompute && level != *recompute) continue;
    std::unique_ptr<GpuStages> stages(new GpuStages(request, type, backend));
    no_memory = stages->Allocate(request, type, level);
    if (!no_memory.ok() && !absl::IsResourceExhausted(no_memory)) return no_memory;
    if (!no_memory.ok()) continue;
    spdlog::info("stages on {} compute in {} and recompute {}", backend->device().name(),
                 type == ValueType::kFloat32 ? "float32" : "bfloat16", RecomputeName(level));
    return stages;
  }
  return no_memory;
}

GpuStages::GpuStages(const StagesRequest& request, ValueType type, std::shared_ptr<ComputeBackend> backend)
    : backend_(std::move(backend)),
      values_(request.tensors.weights(), request.tensors.gradients(), type, backend_.get()),
      message_values_(request.batch_rows * request.sequence * request.config.hidden_size),
      batches_(request.file.schedule) {}

absl::Status GpuStages::Allocate(const StagesRequest& request, ValueType type, Recompute recompute) {
  RETURN_IF_ERROR(values_.Allocate());
  const PipelinePlaces places = PlacesOf(request.file, request.config);
  for (const auto& [stage, most] : MostInFlight(request.file.schedule.lists[static_cast<size_t>(request.device)])) {
    const auto at = static_cast<size_t>(stage);
    stages_[stage] = places.stages[at];
    for (int i = 0; i < most; ++i) {
      ASSIGN_OR_RETURN(
          std::unique_ptr<GpuLlama> made,
          GpuLlama::Make(request.config,
                         {.batch_rows = request.batch_rows,
                          .sequence = request.sequence,
                          .type = type,
                          .recompute = recompute,
                          .stage = GpuLlama::Options::Stage{RangeOf(request.file.split[at]), values_.firsts()}},
                         backend_.get()));
      idle_[stage].push_back(made.get());
      all_.push_back(std::move(made));
    }
  }
  return absl::OkStatus();
}

// ---- A step ----

absl::Status GpuStages::BeginStep(const Batch& batch, float scale) {
  batches_.Begin(batch);
  scale_ = scale / static_cast<float>(batches_.count());
  read_.clear();
  values_.BringWeights();
  values_.Await();
  return values_.status();
}

absl::Status GpuStages::Deliver(int stage) {
  return read_.insert(stage).second ? values_.ReadGradients(stages_.at(stage)) : absl::OkStatus();
}

absl::Status GpuStages::EndStep() {
  RETURN_IF_ERROR(begun_);
  for (const auto& [stage, gradients] : stages_) RETURN_IF_ERROR(Deliver(stage));
  loss_ = 0;
  for (const auto& [llama, count] : losses_) {
    ASSIGN_OR_RETURN(const double mean, llama->Loss());
    loss_ += mean * count / batches_.count();
  }
  losses_.clear();
  return absl::OkStatus();
}

// ---- Operations ----

void GpuStages::Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) {
  std::vector<GpuLlama*>& idle = idle_.at(operation.stage);
  CHECK(!idle.empty());
  GpuLlama* const llama = idle.back();
  idle.pop_back();
  in_flight_[MicroBatches::KeyOf(operation)] = llama;
  begun_.Update(llama->Begin(PreparedBatch(batches_.Of(operation))));
  values_.Upload(input, llama->input());
  llama->Forward(values_.weights());
  if (output.empty()) ++losses_[llama];
  values_.Download(llama->output(), output);
}

void GpuStages::Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) {
  GpuLlama& llama = InFlight(operation);
  values_.Upload(doutput, llama.stream());
  llama.Backward(values_.weights(), values_.gradients(), scale_);
  values_.Download(llama.stream(), dinput);
  End(operation);
}

void GpuStages::BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                              std::span<float> dinput) {
  GpuLlama& llama = InFlight(operation);
  values_.Upload(doutput, llama.stream());
  llama.BackwardInput(values_.weights(), scale_);
  values_.Download(llama.stream(), dinput);
}

void GpuStages::BackwardWeight(const plan::Operation& operation) {
  InFlight(operation).BackwardWeight(values_.weights(), values_.gradients());
  values_.Await();
  End(operation);
}

void GpuStages::End(const plan::Operation& operation) {
  idle_.at(operation.stage).push_back(in_flight_.extract(MicroBatches::KeyOf(operation)).mapped());
}

}  // namespace causeway::worker
