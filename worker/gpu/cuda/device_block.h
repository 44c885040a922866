// A block of a kernel's lanes on a GPU (worker/gpu/kernels/block.h): lane l is thread l. For .cu files alone.
#pragma once

#include <cstdint>

#include "worker/gpu/kernels/block.h"

namespace causeway::worker {

class DeviceBlock {
 public:
  template <typename T>
  class PerLane {
   public:
    __device__ T& operator[](int) { return value_; }

   private:
    T value_{};
  };

  __device__ DeviceBlock(int64_t index, double* scratch) : index_(index), scratch_(scratch) {}

  __device__ int64_t index() const { return index_; }
  __device__ double* scratch() { return scratch_; }

  template <typename F>
  __device__ void Each(const F& f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

 private:
  const int64_t index_;
  double* const scratch_;
};

template <typename Arguments>
__global__ void __launch_bounds__(kLanes) RunKernel(const Arguments arguments) {
  __shared__ double scratch[kLanes];
  for (int64_t index = blockIdx.x; index < arguments.blocks(); index += gridDim.x) {
    DeviceBlock block(index, scratch);
    arguments.Run(block);
  }
}

}  // namespace causeway::worker
