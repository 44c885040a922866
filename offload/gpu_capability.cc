#include "offload/gpu_capability.h"

#include "absl/strings/str_cat.h"

namespace causeway::offload {
namespace {

constexpr int kLeastMajor = 8;

}  // namespace

absl::Status CheckCapability(const GpuCapability& gpu) {
  if (gpu.major >= kLeastMajor) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(gpu.name, ": expected a GPU of compute capability ", kLeastMajor,
                                             ".0 or greater, got ", gpu.major, ".", gpu.minor));
}

absl::Status NoKernelFor(const GpuCapability& gpu, absl::string_view architectures, absl::string_view words) {
  return absl::UnavailableError(absl::StrCat(gpu.name, ": expected a GPU for which this build has kernels (",
                                             architectures, "), got compute capability ", gpu.major, ".", gpu.minor,
                                             ": ", words));
}

}  // namespace causeway::offload
