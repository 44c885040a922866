// A Llama on a device: the values that backward recomputes, and the row sizes that a GPU supports.
#pragma once

#include "absl/status/status.h"
#include "core/llama_config.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

// Recomputed in backward instead of kept: nothing; normed values and SwiGLU's output; all except a block's input. The
// bits are the same.
enum class Recompute { kNone, kNormSwiglu, kBlock };
inline constexpr Recompute kAllRecompute[] = {Recompute::kNone, Recompute::kNormSwiglu, Recompute::kBlock};
const char* RecomputeName(Recompute recompute);  // "none", "norm_swiglu", "block"

// INVALID_ARGUMENT: a row size that a GPU's matrix products do not support, with the key, the multiple and the value.
absl::Status CheckGpuShape(const core::LlamaConfig& config, ValueType type);

}  // namespace causeway::worker
