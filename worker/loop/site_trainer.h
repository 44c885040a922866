// The trainer of a site, on the device that --device names.
//
//   auto   the best there is here      cpu   the processor      cuda, cuda:1   a GPU      another   what AddDevice added
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/device/compute_backend.h"
#include "worker/parallel/trainer.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

// The device that a rank takes, and the check that all ranks of a site take one of a kind.
//
//   --device, visible GPUs, local rank ─► GpuIndex         each rank's kind ─► CheckSameKind: before NCCL is opened,
//                                                          which would wait for a rank that does not come
enum class DeviceKind : uint8_t { kProcessor, kAdded, kGpu };
const char* DeviceKindName(DeviceKind kind);  // "the processor"

// The index of the GPU, or none where --device names no GPU. "cuda" and "auto" take that of the local rank, but a
// single visible one whatever the local rank: launchers that show each rank its own GPU (CUDA_VISIBLE_DEVICES) number
// all 0.
std::optional<int> GpuIndex(absl::string_view device, int visible, int local_rank);

// All ranks call it together, each with its own kind. FAILED_PRECONDITION on all of them names the first rank whose
// kind is not that of rank 0. INTERNAL: a rank has failed.
absl::Status CheckSameKind(const TrainerRanks& ranks, DeviceKind mine);

struct DeviceChoice {
  std::string device = "auto";
  std::string compute_dtype = "auto";  // float32 | bfloat16; auto: bfloat16 on a GPU, float32 elsewhere
  std::string recompute = "auto";      // none | norm_swiglu | block; auto: the first for which there is memory
  std::string attention = "auto";      // cudnn | own, on a GPU; auto: cuDNN's where it takes the model
  std::string products = "auto";       // timed | first algorithm of a matrix product, on a GPU; auto: timed in one rank
  std::string encode = "auto";         // mapped | copied | host: where contributions are encoded; auto: the fastest
  std::string offload_k;               // overrides the run's offload.k at this site; empty: the run's
  std::string resident_share;          // overrides offload.resident_share likewise
  std::string cuda_libs;               // where cuBLASLt and cuDNN are looked for first; empty: where the system looks
  bool overlaps = true;                // as in DeviceSettings
};

// For tests: --device=`name` opens the device that `open` makes, such as a device emulated on the processor; the host's
// collectives sum the gradients of its ranks. At most one, before the flags are read.
void AddDevice(std::string name, std::function<std::unique_ptr<ComputeBackend>()> open);

// INVALID_ARGUMENT: no such device, not in this build, or its driver or a library is missing; before anything has
// joined.
absl::Status CheckDevice(const DeviceChoice& choice);

// Like MakeTrainer, on a device. INVALID_ARGUMENT: a model or setting that the device does not take, too.
absl::StatusOr<std::unique_ptr<Trainer>> MakeSiteTrainer(const DeviceChoice& choice, core::RunConfig config,
                                                         const core::SiteId& site, const TrainerFiles& files);

}  // namespace causeway::worker
