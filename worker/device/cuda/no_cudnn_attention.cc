// In place of cudnn_attention.cc in a build without cudnn-frontend.
#include "worker/device/cuda/cudnn_attention.h"

namespace causeway::worker {
namespace {

absl::Status NotHere() {
  return absl::UnavailableError(
      "this causeway-worker was built without cuDNN's attention; expected a build with -DCUDNN_FRONTEND=DIR");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeCudnnAttention(const AttentionShape&, const std::string&,
                                                                    offload::CudaDevice*) {
  return NotHere();
}

absl::Status CheckCudnnAttention(const AttentionShape&, const std::string&, const std::string&) { return NotHere(); }

}  // namespace causeway::worker
