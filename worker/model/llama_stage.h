// A range of a Llama's layers, optionally with the embedding below and the head above: the part of a model on a device
// of a pipeline or, as the only stage, the whole model (llama_model.h).
//
//   tokens ─► embedding ─┐                                               ┌─► norm ─► head ─► cross-entropy
//   input  ──────────────┴─► layer `first` ─► … ─► layer `last` ─────────┴─► output
//
//   F   Forward                  keeps StageActivations
//   I   BackwardInput            from these to the input's gradient; leaves StageGradients
//   W   BackwardWeight           from both to the weights' gradients, which it adds
//   B   Backward                 I and W, layer by layer, with one layer's buffers
//
// I and W together give the bits of B. Weights and gradients are indexed as core::LlamaManifest has its tensors, empty
// where the stage does not need them. The head's gradient is separate from the embedding's even where they are one
// tensor: sums over micro-batches are then the same wherever the two lie (see head_gradient). The caller provides the
// buffers, for one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/run_config.h"
#include "worker/model/llama_block.h"
#include "worker/model/tensor_values.h"

namespace causeway::worker {

// Rows of the model's sequence length, back to back, and for each token its successor.
struct Batch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
};

// Ends a step's sums where the embedding is the head: adds the head's to the embedding's, and zeroes it.
void AddTiedHead(std::span<float> head, std::span<float> embedding);

// Micro-batch `index` of `count` equal ones.
Batch Part(const Batch& batch, int64_t index, int64_t count);

// Layers [first, last], none if last < first.
struct StageRange {
  int first = 0, last = -1;
  bool embedding = false, head = false;

  int layers() const { return last - first + 1; }
  static StageRange Whole(const core::LlamaConfig& config) {
    return {0, static_cast<int>(config.num_hidden_layers) - 1, true, true};
  }
};

// The values that a micro-batch keeps from F to W.
struct StageActivations {
  std::vector<BlockActivations*> blocks;                   // by layer; all the same one if there is no backward pass
  std::vector<float> output, normed_output, output_scale;  // the last layer's, where the head is
  std::vector<float> probabilities;                        // [rows, vocab_size]
};

// The gradients of one layer that I leaves for W.
struct LayerGradients {
  explicit LayerGradients(const LlamaShape& shape)
      : block(shape), doutput(static_cast<size_t>(shape.rows() * shape.hidden)) {}

  BlockGradients block;
  std::vector<float> doutput;  // [rows, hidden]
};

// The values that a micro-batch keeps from I to W.
struct StageGradients {
  std::vector<LayerGradients*> layers;
  std::vector<float> dnormed;    // the gradient of the head's norm's output
  std::vector<float> dembedded;  // the gradient of the embedding's output
};

class LlamaStage {
 public:
  // For micro-batches of `batch_rows` rows of `sequence` tokens.
  LlamaStage(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, StageRange range);

  const LlamaShape& shape() const { return shape_; }
  const StageRange& range() const { return range_; }
  int64_t message_values() const { return shape_.rows() * shape_.hidden; }
  std::vector<int> tensors() const;  // the tensors that it needs, in the manifest's order
  // The index of the head's gradient: its tensor, or one past the manifest's where the embedding is the head.
  int head_gradient() const { return config_.tie_word_embeddings ? final_norm() + 1 : head(); }

  // Allocates the buffers that do not belong to a layer.
  void Prepare(StageActivations& kept) const;
  void Prepare(StageGradients& between) const;

  // `input` is empty where the embedding is, `output` where the head is. Returns the mean loss, 0 without the head.
  double Forward(const Tensors& weights, const Batch& batch, std::span<const float> input, StageActivations& kept,
                 std::span<float> output) const;
  // The gradient of `scale` times the mean loss; `doutput` is empty where the head is, `dinput` where the embedding is.
  void BackwardInput(const Tensors& weights, const Batch& batch, float scale, std::span<const float> doutput,
                     StageActivations& kept, StageGradients& between, std::span<float> dinput) const;
  void BackwardWeight(const Batch& batch, const StageActivations& kept, const StageGradients& between,
                      const MutableTensors& gradients) const;

  // Called when the gradients of this tensor and of all after it are final.
  using OnFinal = std::function<void(int tensor)>;
  // `scratch` and `below` are buffers for one layer at a time.
  void Backward(const Tensors& weights, const Batch& batch, float scale, std::span<const float> doutput,
                StageActivations& kept, LayerGradients& scratch, std::vector<float>& below,
                const MutableTensors& gradients, std::span<float> dinput, const OnFinal& on_final = nullptr) const;

 private:
  int first_of(int layer) const { return 1 + layer * kBlockTensors; }
  int final_norm() const { return first_of(static_cast<int>(config_.num_hidden_layers)); }
  int head() const { return config_.tie_word_embeddings ? 0 : final_norm() + 1; }
  BlockWeights weights_of(const Tensors& weights, int layer) const {
    return std::span(weights).subspan(static_cast<size_t>(first_of(layer)), kBlockTensors);
  }
  void HeadBackwardInput(const Tensors& weights, const Batch& batch, float scale, StageActivations& kept,
                         std::vector<float>& dnormed, std::vector<float>& doutput) const;
  void HeadBackwardWeight(const StageActivations& kept, const std::vector<float>& dnormed,
                          const MutableTensors& gradients) const;

  core::LlamaConfig config_;
  LlamaShape shape_;
  Rope rope_;
  StageRange range_;
};

}  // namespace causeway::worker
