#include "worker/loop/site_trainer.h"

#include <spdlog/spdlog.h>

#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "formats/config_names.h"
#include "worker/parallel/llama_trainer.h"
#include "worker/ranks/collectives.h"
#include "worker/ranks/rank_place.h"

#ifdef CAUSEWAY_WITH_CUDA
#include "worker/device/cuda/cuda_backend.h"
#include "worker/ranks/cuda/cuda_stream_hooks.h"
#include "worker/ranks/nccl_collectives.h"
#endif

namespace causeway::worker {
namespace {

constexpr char kAuto[] = "auto", kCpu[] = "cpu", kTimed[] = "timed", kFirst[] = "first";

using AddedDevice = std::pair<std::string, std::function<std::unique_ptr<ComputeBackend>()>>;

AddedDevice& Added() {  // also before this file's globals are there
  static auto* const added = new AddedDevice();
  return *added;
}

bool IsAdded(const DeviceChoice& choice) { return Added().second != nullptr && choice.device == Added().first; }

absl::StatusOr<AttentionKind> AttentionOf(const DeviceChoice& choice) {
  for (const AttentionKind kind : kAllAttentionKinds) {
    if (choice.attention != AttentionKindName(kind)) continue;
    if (kind == AttentionKind::kCudnn && (choice.device == kCpu || IsAdded(choice))) {
      return absl::InvalidArgumentError(
          absl::StrCat("--attention=cudnn: expected a GPU, got --device=", choice.device));
    }
    if (kind == AttentionKind::kCudnn && choice.compute_dtype == "float32") {
      return absl::InvalidArgumentError("--attention=cudnn: expected --compute_dtype=bfloat16, got float32");
    }
    return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("--attention: expected auto, cudnn or own, got ", choice.attention));
}

// The run's setting, except where this site's flags override it.
absl::StatusOr<core::OffloadConfig> OffloadOf(const DeviceChoice& choice, core::OffloadConfig offload) {
  const auto named = [](const char* flag, const absl::Status& status) {
    return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
  };
  if (!choice.offload_k.empty()) {
    offload.resident_share = core::kAutoShare;  // the run's share belongs to its own k
    RETURN_IF_ERROR(named("--offload_k", formats::ReadInterleave(choice.offload_k, &offload)));
  }
  if (!choice.resident_share.empty()) {
    RETURN_IF_ERROR(named("--resident_share", formats::ReadShare(choice.resident_share, &offload)));
  }
  return offload;
}

#ifdef CAUSEWAY_WITH_CUDA
int IndexOf(const DeviceChoice& choice) {
  return GpuIndex(choice.device, VisibleGpus(), ReadLocalRank(core::ProcessEnvironment)).value_or(0);
}

absl::StatusOr<std::unique_ptr<ComputeBackend>> OpenGpu(const DeviceChoice& choice) {
  ASSIGN_OR_RETURN(const AttentionKind attention, AttentionOf(choice));
  return MakeCudaBackend(
      IndexOf(choice),
      {.directory = choice.cuda_libs, .attention = attention, .times_products = choice.products == kTimed});
}

absl::StatusOr<std::unique_ptr<Collectives>> OpenNccl(const DeviceChoice& choice, const TrainerRanks& ranks) {
  ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  ASSIGN_OR_RETURN(std::shared_ptr<StreamHooks> hooks, MakeCudaStreamHooks(IndexOf(choice)));
  return MakeNcclCollectives(*nccl, *ranks.values, std::move(hooks), TimeoutOf(ranks.timeout_s));
}
#else
constexpr char kWithoutCuda[] =
    "this causeway-worker was built without CUDA; expected a build of the cuda preset, or --device=cpu, which leaves "
    "the GPUs unused";

absl::StatusOr<std::unique_ptr<ComputeBackend>> OpenGpu(const DeviceChoice&) {
  return absl::UnavailableError(kWithoutCuda);
}

absl::StatusOr<std::unique_ptr<Collectives>> OpenNccl(const DeviceChoice&, const TrainerRanks&) {
  return absl::UnavailableError(kWithoutCuda);
}
#endif

absl::StatusOr<DeviceSettings> SettingsOf(const DeviceChoice& choice) {
  DeviceSettings settings{.overlaps = choice.overlaps};
  const bool gpu = !IsAdded(choice) && choice.device != kCpu;
  if (choice.compute_dtype == "bfloat16" || (choice.compute_dtype == kAuto && gpu)) {
    settings.type = ValueType::kBfloat16;
  } else if (choice.compute_dtype != "float32" && choice.compute_dtype != kAuto) {
    return absl::InvalidArgumentError(
        absl::StrCat("--compute_dtype: expected auto, float32 or bfloat16, got ", choice.compute_dtype));
  }
  if (choice.device == kCpu && choice.compute_dtype == "bfloat16") {
    return absl::InvalidArgumentError("--compute_dtype=bfloat16: expected a device with it, got --device=cpu");
  }
  for (const EncodeWay way : kAllEncodeWays) {
    if (choice.encode == EncodeWayName(way)) settings.encode = way;
  }
  if (choice.encode != kAuto && !settings.encode) {
    return absl::InvalidArgumentError(
        absl::StrCat("--encode: expected auto, mapped, copied or host, got ", choice.encode));
  }
  if (choice.recompute == kAuto) return settings;
  for (const Recompute recompute : kAllRecompute) {
    if (choice.recompute == RecomputeName(recompute)) settings.recompute = recompute;
  }
  if (settings.recompute) return settings;
  return absl::InvalidArgumentError(
      absl::StrCat("--recompute: expected auto, none, norm_swiglu or block, got ", choice.recompute));
}

// Null: the processor.
absl::StatusOr<std::unique_ptr<ComputeBackend>> OpenDevice(const DeviceChoice& choice, const core::RunConfig& config) {
  if (choice.device == kCpu) return nullptr;
  if (IsAdded(choice)) return Added().second();
  if (choice.device == kAuto && config.model_kind != core::ModelKind::kLlama) return nullptr;
  auto gpu = OpenGpu(choice);
  if (gpu.ok()) return gpu;
  if (choice.device != kAuto) {
    return absl::InvalidArgumentError(absl::StrCat("--device=", choice.device, ": ", gpu.status().message()));
  }
  spdlog::info("--device=auto trains on the processor: {}", std::string(gpu.status().message()));
  return nullptr;
}

}  // namespace

void AddDevice(std::string name, std::function<std::unique_ptr<ComputeBackend>()> open) {
  Added() = {std::move(name), std::move(open)};
}

const char* DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kProcessor: return "the processor";
    case DeviceKind::kAdded: return "an added device";
    case DeviceKind::kGpu: return "a GPU";
  }
  return "";
}

std::optional<int> GpuIndex(absl::string_view device, int visible, int local_rank) {
  int index = 0;
  if (device == "cuda" || device == "auto") return visible == 1 ? 0 : local_rank;
  if (absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &index) && index >= 0) return index;
  return std::nullopt;
}

absl::Status CheckSameKind(const TrainerRanks& ranks, DeviceKind mine) {
  if (ranks.world() == 1) return absl::OkStatus();
  std::vector<DeviceKind> kinds(static_cast<size_t>(ranks.world()));
  const Collectives::Ticket ticket =
      ranks.values->AllGather(BytesOf(std::span<const DeviceKind>(&mine, 1)), BytesOf(std::span(kinds)));
  RETURN_IF_ERROR(RankFailure(ranks.values->Await(ticket, TimeoutOf(ranks.timeout_s))));
  for (int rank = 1; rank < ranks.world(); ++rank) {
    if (kinds[rank] == kinds[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        ranks.values->NameOf(rank), ": expected ", DeviceKindName(kinds[0]), ", as rank 0 has, got ",
        DeviceKindName(kinds[rank]), ": the ranks of a site are on devices of one kind; --device names it on each"));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const DeviceChoice& choice) {
  RETURN_IF_ERROR(SettingsOf(choice).status());
  RETURN_IF_ERROR(AttentionOf(choice).status());
  RETURN_IF_ERROR(OffloadOf(choice, {}).status());
  if (choice.products != kAuto && choice.products != kTimed && choice.products != kFirst) {
    return absl::InvalidArgumentError(absl::StrCat("--products: expected auto, timed or first, got ", choice.products));
  }
  if (choice.device == kAuto || choice.device == kCpu || IsAdded(choice)) return absl::OkStatus();
  if (!GpuIndex(choice.device, 0, 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: expected auto, cpu, cuda or cuda:INDEX, got ", choice.device));
  }
  return OpenDevice(choice, {}).status();
}

absl::StatusOr<std::unique_ptr<Trainer>> MakeSiteTrainer(const DeviceChoice& choice, core::RunConfig config,
                                                         const core::SiteId& site, const TrainerFiles& files) {
  ASSIGN_OR_RETURN(config.offload, OffloadOf(choice, config.offload));
  const bool pipeline = !files.pipeline_path.empty();
  DeviceChoice opened = choice;
  // A checkpoint keeps the algorithms of one rank's device; several ranks would go on with other bits.
  if (choice.products == kAuto) opened.products = files.ranks.world() == 1 && !pipeline ? kTimed : kFirst;
  ASSIGN_OR_RETURN(std::unique_ptr<ComputeBackend> backend, OpenDevice(opened, config));
  const DeviceKind device = IsAdded(choice) ? DeviceKind::kAdded : DeviceKind::kGpu;
  RETURN_IF_ERROR(CheckSameKind(files.ranks, backend == nullptr ? DeviceKind::kProcessor : device));
  if (!pipeline && !files.trace_path.empty() && !config.inner.partition) {
    return absl::InvalidArgumentError(
        "--trace: expected --pipeline=FILE with it, or a run with inner.partition, got none");
  }
  if (backend == nullptr) return MakeTrainer(config, site, files);
  if (config.model_kind != core::ModelKind::kLlama) {
    return absl::InvalidArgumentError(absl::StrCat("--device=", choice.device,
                                                   ": expected a run of model.kind llama, got synthetic; use "
                                                   "--device=cpu"));
  }
  if (config.inner.partition && !pipeline) {
    return absl::InvalidArgumentError(absl::StrCat("inner.partition: expected a site with --device=cpu, got --device=",
                                                   choice.device, ", on which nothing is divided yet"));
  }
  ASSIGN_OR_RETURN(const DeviceSettings settings, SettingsOf(choice));
  if (!IsAdded(choice)) RETURN_IF_ERROR(CheckGpuShape(config.llama, settings.type));
  // Gradients on GPUs are summed there. Those of an added device are on the host, those of a pipeline go there.
  std::unique_ptr<Collectives> collectives;
  if (files.ranks.world() > 1 && !IsAdded(choice) && !pipeline) {
    ASSIGN_OR_RETURN(collectives, OpenNccl(choice, files.ranks));
  }
  return LlamaTrainer::Make(config, site, files,
                            std::make_unique<DeviceRank>(std::move(backend), settings, std::move(collectives)));
}

}  // namespace causeway::worker
