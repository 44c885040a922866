// A decoder-only Llama: forward and backward through all of it.
//
//   tokens ─► embedding ─► block 0 ─► … ─► block L−1 ─► norm ─► head ─► cross-entropy ─► mean loss (nats per token)
//
// Tensors are those of core::LlamaManifest: names, shapes and meaning are Hugging Face's LlamaForCausalLM's, so that an
// export loads there and gives the same loss. The weights are the caller's (a trainer's θ, or the anchors for an
// evaluation); a LlamaModel is only the buffers that one pass needs, and belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/llama_config.h"
#include "worker/train/llama_block.h"
#include "worker/train/tensor_values.h"

namespace causeway::worker {

// Where training starts: normal with standard deviation 0.02, the two projections that end in the residual stream (o,
// down) divided by √(2L) so that its variance does not grow with depth (GPT-2, section 2.3); norms 1.
void InitializeLlama(const core::LlamaConfig& config, uint64_t seed, TensorValues& parameters);

// Rows of as many tokens as the model takes, back to back, and for each token the one that follows it.
struct Batch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
};

// Micro-batch `index` of `count` equal ones.
Batch Part(const Batch& batch, int64_t index, int64_t count);

class LlamaModel {
 public:
  enum class Use { kTraining, kForwardOnly };  // forward only: the blocks share one set of activations

  // For batches of `batch_rows` rows of `sequence` tokens, at most max_position_embeddings.
  LlamaModel(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, Use use);

  // The mean loss of the batch. Keeps what Backward and probabilities() need, until the next call.
  double Forward(const Tensors& weights, const Batch& batch);

  // Called during Backward: the gradients of this tensor and of all after it are final.
  using OnFinal = std::function<void(int tensor)>;

  // Adds the gradient of `scale` times the mean loss of the last Forward to `gradients`. Same weights and batch as
  // there; once.
  void Backward(const Tensors& weights, const Batch& batch, const MutableTensors& gradients, float scale = 1,
                const OnFinal& on_final = nullptr);

  // After Forward: [rows, vocab_size], for each token the distribution of the one that follows.
  std::span<const float> probabilities() const { return probabilities_; }

 private:
  BlockActivations& block(int64_t layer) { return blocks_[blocks_.size() == 1 ? 0 : layer]; }
  int final_norm() const { return 1 + static_cast<int>(config_.num_hidden_layers) * kBlockTensors; }
  int head() const { return config_.tie_word_embeddings ? 0 : final_norm() + 1; }

  core::LlamaConfig config_;
  LlamaShape shape_;
  Rope rope_;
  std::vector<BlockActivations> blocks_;
  std::vector<float> output_, normed_output_, output_scale_;  // of the last block
  std::vector<float> probabilities_;

  std::vector<BlockGradients> gradients_;  // one, or none for a model that only goes forward
  std::vector<float> dstream_, dbelow_;    // gradient above and below the block in hand
};

}  // namespace causeway::worker
