// A decoder-only Llama: forward and backward through all of it.
//
//   tokens ─► embedding ─► block 0 ─► … ─► block L−1 ─► norm ─► head ─► cross-entropy ─► mean loss (nats per token)
//
// Tensors are those of core::LlamaManifest: names, shapes and meaning are Hugging Face's LlamaForCausalLM's, so that an
// export loads there and gives the same loss. The caller provides the weights (a trainer's θ, or the anchors for an
// evaluation); a LlamaModel holds only the buffers of one pass, and belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/run_config.h"
#include "worker/model/llama_stage.h"
#include "worker/model/tensor_values.h"

namespace causeway::worker {

// Initializes the parameters: normal with standard deviation 0.02, the two projections that end in the residual stream
// (o, down) divided by √(2L) so that its variance does not grow with depth (GPT-2, section 2.3); norms 1.
// `parameters` have the manifest's tensors, which are all of the model's or some of them.
void InitializeLlama(const core::LlamaConfig& config, const core::Manifest& manifest, uint64_t seed,
                     TensorValues& parameters);
void InitializeLlama(const core::LlamaConfig& config, uint64_t seed, TensorValues& parameters);

class LlamaModel {
 public:
  enum class Use { kTraining, kForwardOnly };  // forward only: the blocks share one set of activations

  // For batches of `batch_rows` rows of `sequence` tokens, at most max_position_embeddings.
  LlamaModel(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, Use use);

  // The mean loss of the batch. Keeps the values for Backward and probabilities() until the next call.
  double Forward(const Tensors& weights, const Batch& batch);

  using OnFinal = LlamaStage::OnFinal;

  // Adds the gradient of `scale` times the mean loss of the last Forward to `gradients`. Needs the same weights and
  // batch, and may be called once. Where the embedding is the head, the head's part is summed separately until the
  // step's `last` micro-batch, and added then.
  void Backward(const Tensors& weights, const Batch& batch, const MutableTensors& gradients, float scale = 1,
                const OnFinal& on_final = nullptr, bool last = true);

  // After Forward: [rows, vocab_size], for each token the distribution of the one that follows.
  std::span<const float> probabilities() const { return kept_.probabilities; }

 private:
  const LlamaStage stage_;
  std::vector<BlockActivations> blocks_;
  StageActivations kept_;
  std::vector<LayerGradients> scratch_;  // one, or none for a model that only goes forward
  std::vector<float> below_;             // the gradient below the current block
  std::vector<float> tied_head_;         // the head's gradient where it is the embedding, until the last micro-batch
};

}  // namespace causeway::worker
