// offload/device.h for CUDA: cudaSetDevice, and cudaStreamCaptureModeRelaxed.
#pragma once

#include <cuda_runtime_api.h>

#include "offload/device.h"

namespace causeway::offload {

struct CudaRuntime {
  using Error = cudaError_t;
  using Mode = cudaStreamCaptureMode;
  static constexpr Mode kRelaxed = cudaStreamCaptureModeRelaxed;

  static int Current();
  static Error Choose(int index) { return cudaSetDevice(index); }
  static bool HasContext(int index);  // asks the driver, since the runtime would make one
  static Mode ExchangeMode(Mode mode);
};

using CurrentDevice = ScopedDevice<CudaRuntime>;

}  // namespace causeway::offload
