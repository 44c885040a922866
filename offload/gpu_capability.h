// Which GPUs have kernels here: those of compute capability 8.0 or greater, as CMakeLists.txt compiles them. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway::offload {

struct GpuCapability {
  absl::string_view name;  // of the GPU
  int major = 0, minor = 0;
};

// UNAVAILABLE: an older GPU, with the capability that was expected and its own.
absl::Status CheckCapability(const GpuCapability& gpu);

// UNAVAILABLE: its driver finds no kernel for it, in its `words`, among those for `architectures`.
absl::Status NoKernelFor(const GpuCapability& gpu, absl::string_view architectures, absl::string_view words);

}  // namespace causeway::offload
