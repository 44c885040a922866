#include "worker/parallel/device_rank.h"

#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "offload/calibration.h"
#include "worker/optimizer/device_optimizer.h"
#include "worker/parallel/device_evaluator.h"
#include "worker/parallel/device_tensors.h"
#include "worker/parallel/gpu_stages.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/stage_models.h"

namespace causeway::worker {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

offload::Bandwidths BandwidthsOf(int64_t parameters, ComputeBackend& backend, const std::string& calibration_path) {
  core::ThreadTeam team(UpdateThreads(parameters));
  const auto calibrated = offload::Calibrate(parameters, team, &backend.device(), calibration_path);
  if (calibrated.ok()) return calibrated->bandwidths;
  spdlog::warn("bandwidths could not be measured: {}", calibrated.status().ToString());
  return {};
}

void Log(const DeviceSettings& settings, const Residency& residency, const StageModels& models,
         const DeviceOptimizer& optimizer, offload::Device& device) {
  spdlog::info("trains on {}: {}, {}", device.name(), optimizer.state().arena().Description(), models.Description());
  spdlog::info("computes in {}; attention: {}; recomputes: {}",
               settings.type == ValueType::kFloat32 ? "float32" : "bfloat16",
               AttentionKindName(models.options().attention->kind()), RecomputeName(residency.recompute));
  const double share = static_cast<double>(residency.resident) / static_cast<double>(optimizer.state().count());
  const offload::SubgroupPlan& plan = residency.plan;
  spdlog::info("optimizer state: {:.0f} % on the device{} ({})", 100 * share,
               residency.hosted() == 0
                   ? ""
                   : absl::StrFormat(", of the others in %d subgroups k %s, predicted %.3g ms an update",
                                     plan.num_subgroups(), core::InterleaveName(plan.k), 1e3 * plan.predicted_s),
               residency.reason);
}

// Names settings that would need less of the device's memory.
absl::Status WithAdvice(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) || absl::StartsWith(status.message(), kNoHostMemory)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; less is needed with --recompute=block, with ",
                                                  "--offload_k=cpu, and with more inner.micro_batches"));
}

// The values of a tied head's gradient on this device.
int64_t TiedHeadValues(const PipelinePlaces& places, int device) {
  const std::vector<int>& heads = places.head_devices;
  return std::ranges::find(heads, device) == heads.end() ? 0 : places.manifest[0].NumValues();
}

}  // namespace

TrainerRanks DeviceRank::With(TrainerRanks ranks) const {
  ranks.device_values = collectives_.get();
  ranks.bucket_bytes = settings_.bucket_bytes;
  return ranks;
}

absl::StatusOr<RankParts> DeviceRank::Open(Request request) {
  const StagesRequest& of = request.stages;
  if (of.file.shards) {
    return absl::InvalidArgumentError("--pipeline: expected width N copies on a device, got shards");
  }
  PipelinePlaces places = PlacesOf(of.file, request.config.llama);
  const core::Manifest held = HeldManifest(places, request.ranks.rank());
  const std::vector<int64_t> firsts = HeldFirsts(places, request.ranks.rank());
  const int64_t parameters = firsts.back();
  const int64_t tied_head = TiedHeadValues(places, of.device);

  ASSIGN_OR_RETURN(StageModels models, StageModels::Plan(of, settings_.type, firsts, backend_.get()));
  const bool evaluates = request.evaluates && of.file.schedule.stages == 1;
  ASSIGN_OR_RETURN(
      const Residency residency,
      ChooseResidency(request.config,
                      {.parameters = parameters,
                       .type = settings_.type,
                       .free_bytes = backend_->device().free_bytes(),
                       .recompute = settings_.recompute,
                       .evaluation_bytes = evaluates ? DeviceEvaluator::Bytes(parameters, settings_.type) : 0,
                       .model_bytes = [&](Recompute recompute, int64_t room_bytes) -> absl::StatusOr<int64_t> {
                         ASSIGN_OR_RETURN(const int64_t bytes, models.Bytes(recompute, room_bytes));
                         return bytes + tied_head * kFloatBytes;
                       },
                       .bandwidths = [&] { return BandwidthsOf(parameters, *backend_, request.calibration_path); }}));
  const int64_t room_bytes =
      residency.hosted() == 0 ? 0 : static_cast<int64_t>(offload::InterleavedUpdate::SetBytes(residency.plan));
  RETURN_IF_ERROR(WithAdvice(models.Make(residency.recompute, room_bytes)));
  auto optimizer = DeviceOptimizer::Make(request.config,
                                         {.manifest = held,
                                          .type = settings_.type,
                                          .residency = residency,
                                          .rooms = models.rooms(),
                                          .pool = &pool_,
                                          .more_gradients = tied_head,
                                          .overlaps = settings_.overlaps},
                                         backend_.get());
  if (!optimizer.ok()) return WithAdvice(optimizer.status());
  Log(settings_, residency, models, **optimizer, backend_->device());
  DeviceState* const state = &(*optimizer)->state();

  RankParts parts;
  auto tensors = DeviceTensors::Open(of.file, std::move(places), request.ranks, TensorValues(held),
                                     {.way = settings_.encode,
                                      .memory = request.config.sync.device_memory,
                                      .residuals = request.config.codec.feedback_up > 0},
                                     state, backend_.get());
  if (!tensors.ok()) return WithAdvice(tensors.status());
  parts.tensors = *std::move(tensors);
  parts.stages =
      std::make_unique<GpuStages>(of, std::move(models), settings_.type, request.ranks.world(), state, backend_.get());
  parts.optimizer = *std::move(optimizer);
  return parts;
}

}  // namespace causeway::worker
