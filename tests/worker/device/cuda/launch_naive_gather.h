#pragma once

#include <cuda_runtime_api.h>

#include "tests/worker/device/naive_gather.h"

namespace causeway::worker {

void LaunchNaiveGather(const NaiveGatherKernel& kernel, cudaStream_t stream);

}  // namespace causeway::worker
