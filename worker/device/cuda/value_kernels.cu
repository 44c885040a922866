#include "worker/device/cuda/launch_kernel.cuh"

namespace causeway::worker {

bool LaunchValueKernel(const Kernel& kernel, cudaStream_t stream) { return LaunchIf<true>(kernel, stream); }

}  // namespace causeway::worker
