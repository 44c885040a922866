// The shape of a Llama: `model` of run.yaml, where its kind is llama (core/run_config.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace causeway::core {

// Llama 3's extension of RoPE to longer texts (rope_type: llama3): long waves turn `factor` times slower, short ones as
// before, those in between by a mean of both. Names as in Hugging Face.
struct RopeScaling {
  double factor = 0;
  double low_freq_factor = 0;   // waves longer than original / low_freq_factor tokens are long
  double high_freq_factor = 0;  // waves shorter than original / high_freq_factor tokens are short
  int64_t original_max_position_embeddings = 0;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// Names as in Hugging Face's config.json.
struct LlamaConfig {
  int64_t hidden_size = 128;
  int64_t intermediate_size = 344;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t vocab_size = 256;
  int64_t max_position_embeddings = 128;  // the maximum number of tokens of a training row
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = true;
  std::string init_from;  // directory of safetensors to start from; empty: initialized from the seed

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace causeway::core
