#include "offload/cuda/current_device.h"

namespace causeway::offload {

int CudaRuntime::Current() {
  int index = 0;
  return cudaGetDevice(&index) == cudaSuccess ? index : -1;
}

bool CudaRuntime::HasContext(int index) {
  using GetState = int(int device, unsigned* flags, int* active);
  static GetState* const get_state = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    constexpr unsigned kFirst = 7000;  // the version of CUDA that introduced it
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, kFirst, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState*>(found) : nullptr;
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state != nullptr && get_state(index, &flags, &active) == 0 && active != 0;
}

CudaRuntime::Mode CudaRuntime::ExchangeMode(Mode mode) {
  return cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess ? mode : cudaStreamCaptureModeGlobal;
}

}  // namespace causeway::offload
