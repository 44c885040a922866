// Attention by cuDNN, for bfloat16 values with float32 sums: fused, so that no scores are stored, and with a
// deterministic backward.
//
// Forward's statistics are each row's log Σ exp of its scores, [batch, heads, sequence]. cuDNN (9.11 or newer) is found
// at run time, as cuBLASLt is; its graphs are described by cudnn-frontend, headers that only a build with
// -DCUDNN_FRONTEND=DIR has. Thread-compatible.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/cuda/cuda_device.h"
#include "worker/device/device_attention.h"

namespace causeway::worker {

// `library_directory`: where cuDNN is looked for first; empty: where the system looks. All calls of a process share the
// first one found. INVALID_ARGUMENT: a shape that cuDNN does not support on this device, with its message. UNAVAILABLE:
// not in this build. NOT_FOUND: no library, or one that is too old. The device outlives the result.
absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeCudnnAttention(const AttentionShape& shape,
                                                                    const std::string& library_directory,
                                                                    offload::CudaDevice* device);

// Whether a device of this description (cuDNN's device properties, in JSON: tests/gpu/h200.json) would support the
// shape; needs no device. Errors as above.
absl::Status CheckCudnnAttention(const AttentionShape& shape, const std::string& library_directory,
                                 const std::string& device_properties);

}  // namespace causeway::worker
