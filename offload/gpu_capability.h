// Which GPUs have kernels here: those of compute capability 8.0 or greater, as CMakeLists.txt compiles them. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway::offload {

struct GpuCapability {
  absl::string_view name;  // name of the GPU
  int major = 0, minor = 0;
};

// UNAVAILABLE: an older GPU, with the capability that was expected and its own.
absl::Status CheckCapability(const GpuCapability& gpu);

// The error UNAVAILABLE: the driver finds no kernel for the GPU among those for `architectures`, as its `words` say.
absl::Status NoKernelFor(const GpuCapability& gpu, absl::string_view architectures, absl::string_view words);

}  // namespace causeway::offload
