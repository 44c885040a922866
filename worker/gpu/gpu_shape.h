// A Llama on a device: values that backward makes again, rows that a GPU takes.
#pragma once

#include "absl/status/status.h"
#include "core/llama_config.h"
#include "worker/gpu/compute_backend.h"

namespace causeway::worker {

// Made again in backward, and not kept: nothing; normed values and SwiGLU's output; all but a block's input.
// The bits are the same.
enum class Recompute { kNone, kNormSwiglu, kBlock };
inline constexpr Recompute kAllRecompute[] = {Recompute::kNone, Recompute::kNormSwiglu, Recompute::kBlock};
const char* RecomputeName(Recompute recompute);  // "none", "norm_swiglu", "block"

// INVALID_ARGUMENT: rows that a GPU's matrix products do not take, with the key, the multiple and the value.
absl::Status CheckGpuShape(const core::LlamaConfig& config, ValueType type);

}  // namespace causeway::worker
