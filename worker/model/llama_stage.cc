#include "worker/model/llama_stage.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace causeway::worker {

Batch Part(const Batch& batch, int64_t index, int64_t count) {
  const int64_t size = std::ssize(batch.tokens) / count;
  CHECK(size * count == std::ssize(batch.tokens));
  const auto part = [&](const std::vector<int32_t>& all) {
    return std::vector<int32_t>(all.begin() + index * size, all.begin() + (index + 1) * size);
  };
  return {part(batch.tokens), part(batch.targets)};
}

void AddTiedHead(std::span<float> head, std::span<float> embedding) {
  for (size_t i = 0; i < head.size(); ++i) embedding[i] += std::exchange(head[i], 0.0f);
}

LlamaStage::LlamaStage(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, StageRange range)
    : config_(config),
      shape_(config, batch_rows, sequence),
      rope_(sequence, RopeFrequencies(shape_.attention.head_size, config.rope_theta, config.rope_scaling)),
      range_(range) {
  CHECK(config.hidden_size % config.num_attention_heads == 0 && shape_.attention.head_size % 2 == 0);
  CHECK(config.num_attention_heads % config.num_key_value_heads == 0);
  CHECK(range.layers() >= 1 && range.last < config.num_hidden_layers);
}

std::vector<int> LlamaStage::tensors() const {
  std::vector<int> tensors;
  if (range_.embedding || (range_.head && head() == 0)) tensors.push_back(0);
  for (int t = first_of(range_.first); t < first_of(range_.last + 1); ++t) tensors.push_back(t);
  if (range_.head) tensors.push_back(final_norm());
  if (range_.head && head() != 0) tensors.push_back(head());
  return tensors;
}

void LlamaStage::Prepare(StageActivations& kept) const {
  if (!range_.head) return;
  kept.output.resize(static_cast<size_t>(message_values()));
  kept.normed_output.resize(kept.output.size());
  kept.output_scale.resize(static_cast<size_t>(shape_.rows()));
  kept.probabilities.resize(static_cast<size_t>(shape_.rows() * config_.vocab_size));
}

void LlamaStage::Prepare(StageGradients& between) const {
  const auto values = static_cast<size_t>(message_values());
  if (range_.head) between.dnormed.resize(values);
  if (range_.embedding) between.dembedded.resize(values);
}

double LlamaStage::Forward(const Tensors& weights, const Batch& batch, std::span<const float> input,
                           StageActivations& kept, std::span<float> output) const {
  const int64_t rows = shape_.rows();
  CHECK(std::ssize(batch.tokens) == rows && batch.targets.size() == batch.tokens.size());
  CHECK(std::ssize(kept.blocks) == range_.layers());
  if (range_.embedding) {
    Embedding(batch.tokens, shape_.hidden, weights[0].data(), kept.blocks.front()->input.data());
  } else {
    CHECK(std::ssize(input) == message_values());
    std::ranges::copy(input, kept.blocks.front()->input.begin());
  }
  float* const last = range_.head ? kept.output.data() : output.data();
  CHECK(range_.head || std::ssize(output) == message_values());
  for (int i = 0; i < range_.layers(); ++i) {
    const auto at = static_cast<size_t>(i);
    float* const above = i + 1 < range_.layers() ? kept.blocks[at + 1]->input.data() : last;
    BlockForward(shape_, rope_, weights_of(weights, range_.first + i), *kept.blocks[at], above);
  }
  if (!range_.head) return 0;
  RmsNorm(rows, shape_.hidden, shape_.norm_epsilon, kept.output.data(), weights[final_norm()].data(),
          kept.normed_output.data(), kept.output_scale.data());
  Linear(rows, shape_.hidden, config_.vocab_size, kept.normed_output.data(), weights[head()].data(),
         kept.probabilities.data());
  return CrossEntropy(batch.targets, config_.vocab_size, kept.probabilities.data()) / static_cast<double>(rows);
}

void LlamaStage::HeadBackwardInput(const Tensors& weights, const Batch& batch, float scale, StageActivations& kept,
                                   std::vector<float>& dnormed, std::vector<float>& doutput) const {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden;
  float* dlogits = kept.probabilities.data();
  CrossEntropyBackwardInput(batch.targets, config_.vocab_size, scale / static_cast<float>(rows), dlogits);
  LinearBackwardInput(rows, hidden, config_.vocab_size, dlogits, weights[head()].data(), dnormed.data());
  std::ranges::fill(doutput, 0.0f);
  RmsNormBackwardInputAdd(rows, hidden, dnormed.data(), kept.output.data(), weights[final_norm()].data(),
                          kept.output_scale.data(), doutput.data());
}

void LlamaStage::HeadBackwardWeight(const StageActivations& kept, const std::vector<float>& dnormed,
                                    const MutableTensors& gradients) const {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden;
  LinearBackwardWeight(rows, hidden, config_.vocab_size, kept.probabilities.data(), kept.normed_output.data(),
                       gradients[head_gradient()].data());
  RmsNormBackwardWeight(rows, hidden, dnormed.data(), kept.output.data(), kept.output_scale.data(),
                        gradients[final_norm()].data());
}

void LlamaStage::BackwardInput(const Tensors& weights, const Batch& batch, float scale, std::span<const float> doutput,
                               StageActivations& kept, StageGradients& between, std::span<float> dinput) const {
  const int layers = range_.layers();
  std::vector<float>& top = between.layers.back()->doutput;
  if (range_.head) {
    HeadBackwardInput(weights, batch, scale, kept, between.dnormed, top);
  } else {
    std::ranges::copy(doutput, top.begin());
  }
  float* const bottom = range_.embedding ? between.dembedded.data() : dinput.data();
  CHECK(range_.embedding || std::ssize(dinput) == message_values());
  for (int i = layers - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    LayerGradients& layer = *between.layers[at];
    float* const below = i > 0 ? between.layers[at - 1]->doutput.data() : bottom;
    BlockBackwardInput(shape_, rope_, weights_of(weights, range_.first + i), *kept.blocks[at], layer.doutput.data(),
                       layer.block, below);
  }
}

void LlamaStage::BackwardWeight(const Batch& batch, const StageActivations& kept, const StageGradients& between,
                                const MutableTensors& gradients) const {
  if (range_.head) HeadBackwardWeight(kept, between.dnormed, gradients);
  for (int i = range_.layers() - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    const LayerGradients& layer = *between.layers[at];
    BlockBackwardWeight(shape_, *kept.blocks[at], layer.doutput.data(), layer.block,
                        std::span(gradients).subspan(static_cast<size_t>(first_of(range_.first + i)), kBlockTensors));
  }
  if (range_.embedding) {
    EmbeddingBackwardWeight(batch.tokens, shape_.hidden, between.dembedded.data(), gradients[0].data());
  }
}

void LlamaStage::Backward(const Tensors& weights, const Batch& batch, float scale, std::span<const float> doutput,
                          StageActivations& kept, LayerGradients& scratch, std::vector<float>& below,
                          const MutableTensors& gradients, std::span<float> dinput, const OnFinal& on_final) const {
  const auto final = [&](int tensor) {
    if (on_final != nullptr) on_final(tensor);
  };
  std::vector<float>& dstream = scratch.doutput;
  if (range_.head) {
    HeadBackwardInput(weights, batch, scale, kept, below, dstream);
    HeadBackwardWeight(kept, below, gradients);
    final(final_norm());  // and for a separate head
  } else {
    std::ranges::copy(doutput, dstream.begin());
  }
  for (int i = range_.layers() - 1; i >= 0; --i) {
    const int layer = range_.first + i;
    BlockActivations& block = *kept.blocks[static_cast<size_t>(i)];
    BlockBackwardInput(shape_, rope_, weights_of(weights, layer), block, dstream.data(), scratch.block, below.data());
    BlockBackwardWeight(shape_, block, dstream.data(), scratch.block,
                        std::span(gradients).subspan(static_cast<size_t>(first_of(layer)), kBlockTensors));
    std::swap(dstream, below);
    final(first_of(layer));
  }
  if (range_.embedding) {
    EmbeddingBackwardWeight(batch.tokens, shape_.hidden, dstream.data(), gradients[0].data());
    final(0);
  } else {
    std::ranges::copy(dstream, dinput.begin());
  }
}

}  // namespace causeway::worker
