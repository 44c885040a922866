#include "worker/model/gpu_shape.h"

#include "absl/strings/str_cat.h"
#include "worker/model/llama_block.h"

namespace causeway::worker {

absl::Status CheckGpuShape(const core::LlamaConfig& config, ValueType type) {
  constexpr int64_t kMultiple = 8;
  if (type == ValueType::kFloat32) return absl::OkStatus();
  const LlamaShape shape(config, 1, 1);
  for (const auto& [key, value] :
       {std::pair("hidden_size", shape.hidden), std::pair("intermediate_size", shape.intermediate),
        std::pair("hidden_size · num_key_value_heads / num_attention_heads", shape.kv_hidden)}) {
    if (value % kMultiple == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", key, ": expected a multiple of ", kMultiple,
                     ", so that rows of bfloat16 begin on 16 bytes of a GPU's memory, got ", value,
                     "; use --compute_dtype=float32"));
  }
  return absl::OkStatus();
}

const char* RecomputeName(Recompute recompute) {
  constexpr const char* kNames[] = {"none", "norm_swiglu", "block"};
  return kNames[static_cast<int>(recompute)];
}

}  // namespace causeway::worker
