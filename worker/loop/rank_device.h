// The device that a rank takes, and the check that all ranks of a site take one of a kind.
//
//   --device, visible GPUs, local rank ─► GpuIndex         each rank's kind ─► CheckSameKind: before NCCL is opened,
//                                                          which would wait for a rank that does not come
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

enum class DeviceKind : uint8_t { kProcessor, kFake, kGpu };
const char* DeviceKindName(DeviceKind kind);  // "the processor"

// The index of the GPU, or none where --device names no GPU. "cuda" and "auto" take that of the local rank, but a
// single visible one whatever the local rank: launchers that show each rank its own GPU (CUDA_VISIBLE_DEVICES) number
// all 0.
std::optional<int> GpuIndex(absl::string_view device, int visible, int local_rank);

// All ranks call it together, each with its own kind. FAILED_PRECONDITION on all of them names the first rank whose
// kind is not that of rank 0. INTERNAL: a rank has failed.
absl::Status CheckSameKind(const TrainerRanks& ranks, DeviceKind mine);

}  // namespace causeway::worker
