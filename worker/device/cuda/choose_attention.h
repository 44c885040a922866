// Chooses the attention of a GPU: cuDNN's, if `kind`, the build, the libraries and the shape allow it; else, for
// `auto`, by matrix products, with a warning that says why. Errors: cudnn_attention.h's, for `cudnn`.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "offload/cuda/cuda_device.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

struct GpuAttentionChoice {
  AttentionKind kind = AttentionKind::kAuto;
  AttentionShape shape;
  ValueType type = ValueType::kBfloat16;
  std::string library_directory;
};

// `device` is the backend's; both outlive the result.
absl::StatusOr<std::unique_ptr<DeviceAttention>> ChooseAttention(const GpuAttentionChoice& choice,
                                                                 offload::CudaDevice* device, ComputeBackend* backend);

}  // namespace causeway::worker
