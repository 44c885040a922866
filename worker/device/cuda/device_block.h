// A block of a kernel's lanes on a GPU (worker/device/kernels/block.h): lane l is thread l. Only for .cu files.
#pragma once

#include <cstdint>

#include "worker/device/kernels/block.h"

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

  // Warps meet in shared memory, and the lanes of the first continue with shuffles: the same tree as on the host.
  template <typename T, typename Combine>
  __device__ T Combined(PerLane<T>& values, const Combine& combine) {
    static_assert(kLanes == 128);
    constexpr int kWarp = 32;
    auto* const shared = reinterpret_cast<T*>(scratch_);
    const int lane = static_cast<int>(threadIdx.x);
    shared[lane] = values[lane];
    __syncthreads();
    if (lane < kWarp) {
      T value = combine(combine(shared[lane], shared[lane + 2 * kWarp]),
                        combine(shared[lane + kWarp], shared[lane + 3 * kWarp]));
      for (int half = kWarp / 2; half > 0; half /= 2) value = combine(value, __shfl_down_sync(~0u, value, half));
      if (lane == 0) shared[0] = value;
    }
    __syncthreads();
    const T result = shared[0];
    __syncthreads();  // all have read it before anything else is written there
    return result;
  }

 private:
  const int64_t index_;
  double* const scratch_;
};

template <typename Arguments>
__global__ void __launch_bounds__(kLanes) RunKernel(const Arguments arguments) {
  __shared__ alignas(16) double scratch[2 * kLanes];
  for (int64_t index = blockIdx.x; index < arguments.blocks(); index += gridDim.x) {
    DeviceBlock block(index, scratch);
    arguments.Run(block);
  }
}

}  // namespace causeway::worker
