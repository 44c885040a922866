#include "worker/parallel/stage_models.h"

#include <algorithm>

#include "core/check.h"
#include "worker/model/llama_block.h"
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

absl::StatusOr<StageModels> StageModels::Plan(const StagesRequest& request, ValueType type,
                                              const std::vector<int64_t>& firsts, ComputeBackend* backend) {
  const AttentionShape shape = LlamaShape(request.config, request.batch_rows, request.sequence).attention;
  const plan::PipelineSchedule& schedule = request.file.schedule;
  StageModels models(request.config, backend);
  for (const auto& [stage, most] : MostInFlight(schedule.lists[static_cast<size_t>(request.device)])) {
    GpuLlama::Options options{.batch_rows = request.batch_rows, .sequence = request.sequence, .type = type};
    if (schedule.stages > 1) {
      options.stage = GpuLlama::Options::Stage{RangeOf(request.file.split[static_cast<size_t>(stage)]), firsts};
    }
    for (int i = 0; i < most; ++i) {
      ASSIGN_OR_RETURN(options.attention, backend->MakeAttention(shape, type));
      models.models_.push_back({stage, options, nullptr});
    }
  }
  return models;
}

absl::StatusOr<int64_t> StageModels::Bytes(Recompute recompute, int64_t room_bytes) {
  int64_t all = 0;
  for (Model& model : models_) {
    model.options.recompute = recompute;
    model.options.room_bytes = &model == &models_.front() ? room_bytes : 0;
    ASSIGN_OR_RETURN(const int64_t bytes, GpuLlama::Bytes(config_, model.options, backend_));
    all += bytes;
  }
  return all;
}

absl::Status StageModels::Make(Recompute recompute, int64_t room_bytes) {
  for (Model& model : models_) {
    model.options.recompute = recompute;
    model.options.room_bytes = &model == &models_.front() ? room_bytes : 0;
    ASSIGN_OR_RETURN(model.llama, GpuLlama::Make(config_, model.options, backend_));
  }
  return absl::OkStatus();
}

std::map<int, std::vector<GpuLlama*>> StageModels::of_stages() const {
  std::map<int, std::vector<GpuLlama*>> all;
  for (const Model& model : models_) all[model.stage].push_back(model.llama.get());
  return all;
}

}  // namespace causeway::worker
