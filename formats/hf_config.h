// config.json, as Hugging Face's transformers writes and reads it for LlamaForCausalLM, beside model.safetensors.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/run_config.h"

namespace causeway::formats {

// A config.json that LlamaForCausalLM loads: float32 weights, SiLU, no biases, RoPE, plain or Llama 3's, no special
// tokens.
std::string HfConfigJson(const core::LlamaConfig& llama);

// The first key in which two of them describe different models: "hidden_size: expected 128, got 256"; empty: none.
std::string HfConfigDifference(const core::LlamaConfig& expected, const core::LlamaConfig& got);

// Reads a config.json (`path` is the file); absent keys take transformers' defaults. INVALID_ARGUMENT names the file
// and the key, for a feature that this trainer lacks (another architecture or activation, biases, another RoPE), with
// the alternative to use, or for an impossible value.
absl::StatusOr<core::LlamaConfig> ReadHfConfig(const std::string& path);

}  // namespace causeway::formats
