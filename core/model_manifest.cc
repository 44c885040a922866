#include "core/model_manifest.h"

#include <string>

#include "core/check.h"

namespace causeway::core {
namespace {

void AppendBlock(const LlamaConfig& config, int layer, Manifest& manifest) {
  const int64_t hidden = config.hidden_size;
  const int64_t kv_hidden = hidden / config.num_attention_heads * config.num_key_value_heads;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    const auto kind = shape.size() == 1 ? TensorKind::kNorm : TensorKind::kMatrix;
    manifest.push_back({"model.layers." + std::to_string(layer) + "." + name + ".weight", shape, kind, layer});
  };
  add("self_attn.q_proj", {hidden, hidden});
  add("self_attn.k_proj", {kv_hidden, hidden});
  add("self_attn.v_proj", {kv_hidden, hidden});
  add("self_attn.o_proj", {hidden, hidden});
  add("mlp.gate_proj", {config.intermediate_size, hidden});
  add("mlp.up_proj", {config.intermediate_size, hidden});
  add("mlp.down_proj", {hidden, config.intermediate_size});
  add("input_layernorm", {hidden});
  add("post_attention_layernorm", {hidden});
}

}  // namespace

Manifest LlamaManifest(const LlamaConfig& config) {
  const int64_t hidden = config.hidden_size;
  Manifest manifest;
  manifest.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}, TensorKind::kEmbedding, kNoLayer});
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) AppendBlock(config, layer, manifest);
  manifest.push_back({"model.norm.weight", {hidden}, TensorKind::kNorm, kNoLayer});
  if (!config.tie_word_embeddings) {
    manifest.push_back({"lm_head.weight", {config.vocab_size, hidden}, TensorKind::kHead, kNoLayer});
  }
  return manifest;
}

Manifest SyntheticManifest(const SyntheticConfig& config) {
  Manifest manifest;
  for (const SyntheticTensor& tensor : config.tensors) {
    const int layer = static_cast<int>(manifest.size());
    manifest.push_back({tensor.name, tensor.shape, TensorKind::kMatrix, layer});
  }
  return manifest;
}

Manifest ModelManifest(const RunConfig& config) {
  CHECK(config.model_kind != ModelKind::kExternal);
  return config.model_kind == ModelKind::kLlama ? LlamaManifest(config.llama) : SyntheticManifest(config.synthetic);
}

}  // namespace causeway::core
