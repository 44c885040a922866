// A GPU as a ComputeBackend: kernels from their shared source text (worker/device/kernels), matrix products by
// cuBLASLt, of float32 or of bfloat16 with float32 sums.
//
// Attention is cuDNN's where possible (cudnn_attention.h), else by matrix products. Their algorithms are measured and
// kept (matrix_products.h). Errors are the device's (offload/cuda/cuda_device.h). One owner thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "offload/cuda/cuda_device.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

// Chooses the attention of a GPU: cuDNN's, if `kind`, the build, the libraries and the shape allow it; else, for
// `auto`, by matrix products, with a warning that says why. Errors: cudnn_attention.h's, for `cudnn`.

struct GpuAttentionChoice {
  AttentionKind kind = AttentionKind::kAuto;
  AttentionShape shape;
  ValueType type = ValueType::kBfloat16;
  std::string library_directory;
};

// `device` is the backend's; both outlive the result.
absl::StatusOr<std::unique_ptr<DeviceAttention>> ChooseAttention(const GpuAttentionChoice& choice,
                                                                 offload::CudaDevice* device, ComputeBackend* backend);

struct CudaLibraries {
  std::string directory;  // where they are looked for first; empty: where the system looks
  AttentionKind attention = AttentionKind::kAuto;
  bool times_products = true;  // false: each product takes cuBLASLt's first algorithm
};

int VisibleGpus();  // how many the driver shows to this process; 0 without a driver

// UNAVAILABLE, NOT_FOUND: there is no such device, or no cuBLASLt.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCudaBackend(int index, const CudaLibraries& libraries);

}  // namespace causeway::worker
