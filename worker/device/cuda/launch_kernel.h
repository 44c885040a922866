// Queues a kernel on a stream. nvcc contracts products and sums in a whole file or not at all, so there are two files:
//
//   value_kernels.cu: those whose bits are the host's, without contraction     model_kernels.cu: all others
#pragma once

#include <cuda_runtime_api.h>

#include "worker/device/compute_backend.h"

namespace causeway::worker {

// False if the kernel is the other file's. Errors are cudaGetLastError's.
bool LaunchValueKernel(const Kernel& kernel, cudaStream_t stream);
bool LaunchModelKernel(const Kernel& kernel, cudaStream_t stream);

}  // namespace causeway::worker
