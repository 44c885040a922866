#include "worker/train/llama_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/model_manifest.h"

namespace causeway::worker {
namespace {

bool EndsInResidualStream(const core::TensorSpec& spec) {
  return spec.name.ends_with("o_proj.weight") || spec.name.ends_with("down_proj.weight");
}

}  // namespace

void InitializeLlama(const core::LlamaConfig& config, uint64_t seed, TensorValues& parameters) {
  const core::Manifest manifest = core::LlamaManifest(config);
  for (int i = 0; i < parameters.size(); ++i) {
    if (manifest[i].kind == core::TensorKind::kNorm) {
      std::ranges::fill(parameters[i], 1.0f);
      continue;
    }
    const double depth = EndsInResidualStream(manifest[i]) ? 2.0 * static_cast<double>(config.num_hidden_layers) : 1.0;
    FillNormal(seed, manifest[i].name, 0.02 / std::sqrt(depth), parameters[i]);
  }
}

Batch Part(const Batch& batch, int64_t index, int64_t count) {
  const int64_t size = std::ssize(batch.tokens) / count;
  CHECK(size * count == std::ssize(batch.tokens));
  const auto part = [&](const std::vector<int32_t>& all) {
    return std::vector<int32_t>(all.begin() + index * size, all.begin() + (index + 1) * size);
  };
  return {part(batch.tokens), part(batch.targets)};
}

LlamaModel::LlamaModel(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, Use use)
    : config_(config),
      shape_(config, batch_rows, sequence),
      rope_(sequence, RopeFrequencies(shape_.attention.head_size, config.rope_theta, config.rope_scaling)),
      blocks_(use == Use::kTraining ? config.num_hidden_layers : 1, BlockActivations(shape_)),
      output_(shape_.rows() * config.hidden_size),
      normed_output_(output_.size()),
      output_scale_(shape_.rows()),
      probabilities_(shape_.rows() * config.vocab_size) {
  CHECK(config.hidden_size % config.num_attention_heads == 0 && shape_.attention.head_size % 2 == 0);
  CHECK(config.num_attention_heads % config.num_key_value_heads == 0);
  if (use == Use::kForwardOnly) return;
  gradients_.emplace_back(shape_);
  dstream_.resize(output_.size());
  dbelow_.resize(output_.size());
}

double LlamaModel::Forward(const Tensors& weights, const Batch& batch) {
  const int64_t rows = shape_.rows();
  CHECK(static_cast<int64_t>(batch.tokens.size()) == rows && batch.targets.size() == batch.tokens.size());
  const int64_t layers = config_.num_hidden_layers;
  Embedding(batch.tokens, shape_.hidden, weights[0].data(), block(0).input.data());
  for (int64_t layer = 0; layer < layers; ++layer) {
    const BlockWeights block_weights = std::span(weights).subspan(1 + layer * kBlockTensors, kBlockTensors);
    float* output = layer + 1 < layers ? block(layer + 1).input.data() : output_.data();
    BlockForward(shape_, rope_, block_weights, block(layer), output);
  }
  RmsNorm(rows, shape_.hidden, shape_.norm_epsilon, output_.data(), weights[final_norm()].data(), normed_output_.data(),
          output_scale_.data());
  Linear(rows, shape_.hidden, config_.vocab_size, normed_output_.data(), weights[head()].data(), probabilities_.data());
  return CrossEntropy(batch.targets, config_.vocab_size, probabilities_.data()) / static_cast<double>(rows);
}

void LlamaModel::Backward(const Tensors& weights, const Batch& batch, const MutableTensors& gradients, float scale,
                          const OnFinal& on_final) {
  const auto final = [&](int tensor) {
    if (on_final != nullptr) on_final(tensor);
  };
  CHECK(!gradients_.empty());
  const int64_t rows = shape_.rows();
  const int64_t hidden = shape_.hidden;
  float* dlogits = probabilities_.data();
  CrossEntropyBackwardInput(batch.targets, config_.vocab_size, scale / static_cast<float>(rows), dlogits);
  LinearBackwardInput(rows, hidden, config_.vocab_size, dlogits, weights[head()].data(), dbelow_.data());
  LinearBackwardWeight(rows, hidden, config_.vocab_size, dlogits, normed_output_.data(), gradients[head()].data());
  std::ranges::fill(dstream_, 0.0f);
  RmsNormBackwardInputAdd(rows, hidden, dbelow_.data(), output_.data(), weights[final_norm()].data(),
                          output_scale_.data(), dstream_.data());
  RmsNormBackwardWeight(rows, hidden, dbelow_.data(), output_.data(), output_scale_.data(),
                        gradients[final_norm()].data());
  final(final_norm());  // and of a head of its own
  for (int64_t layer = config_.num_hidden_layers - 1; layer >= 0; --layer) {
    const int64_t first = 1 + layer * kBlockTensors;
    BlockBackwardInput(shape_, rope_, std::span(weights).subspan(first, kBlockTensors), block(layer), dstream_.data(),
                       gradients_[0], dbelow_.data());
    BlockBackwardWeight(shape_, block(layer), dstream_.data(), gradients_[0],
                        std::span(gradients).subspan(first, kBlockTensors));
    std::swap(dstream_, dbelow_);
    final(static_cast<int>(first));
  }
  EmbeddingBackwardWeight(batch.tokens, hidden, dstream_.data(), gradients[0].data());
  final(0);
}

}  // namespace causeway::worker
