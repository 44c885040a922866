#include "tests/worker/device/cuda/launch_naive_gather.h"
#include "worker/device/cuda/device_block.h"

#pragma nv_diag_suppress 20011, 20014, 20015

namespace causeway::worker {

void LaunchNaiveGather(const NaiveGatherKernel& kernel, cudaStream_t stream) {
  if (kernel.blocks() > 0) RunKernel<<<static_cast<unsigned>(kernel.blocks()), kLanes, 0, stream>>>(kernel);
}

}  // namespace causeway::worker
