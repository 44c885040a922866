#include "worker/device/cuda/launch_kernel.cuh"

namespace causeway::worker {

bool LaunchModelKernel(const Kernel& kernel, cudaStream_t stream) { return LaunchIf<false>(kernel, stream); }

}  // namespace causeway::worker
