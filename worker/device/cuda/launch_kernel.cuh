// Shared by the two .cu files that launch_kernel.h names.
#pragma once

#include <algorithm>

#include "worker/device/cuda/device_block.h"
#include "worker/device/cuda/launch_kernel.h"

// A kernel's source text works for any block; nvcc need not warn that a GPU's block runs only on a GPU.
#pragma nv_diag_suppress 20011, 20014, 20015

namespace causeway::worker {

template <typename Arguments>
concept HasHostsBits = requires {
  Arguments::kHostsBits;
};

template <bool kHostsBits>
bool LaunchIf(const Kernel& kernel, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = int64_t{1} << 20;
  return std::visit(
      [&]<typename Arguments>(const Arguments& arguments) {
        if constexpr (HasHostsBits<Arguments> != kHostsBits) {
          return false;
        } else {
          const int64_t blocks = std::min(arguments.blocks(), kMostBlocks);
          if (blocks > 0) RunKernel<<<static_cast<unsigned>(blocks), kLanes, 0, stream>>>(arguments);
          return true;
        }
      },
      kernel);
}

}  // namespace causeway::worker
