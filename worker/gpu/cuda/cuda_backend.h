// A GPU as a ComputeBackend: kernels by their own text (worker/gpu/kernels), matrix products by cuBLASLt, of float32
// or of bfloat16 with float32 sums.
//
// cuBLASLt's algorithm for a shape is the first that its heuristic names; the same on the same device and library.
// Errors are the device's (offload/cuda/cuda_device.h). One owner thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/gpu/compute_backend.h"

namespace causeway::worker {

// UNAVAILABLE, NOT_FOUND: there is no such device, or no cuBLASLt. `library_directory`: as LoadCublasLt.
absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCudaBackend(int index, const std::string& library_directory);

}  // namespace causeway::worker
