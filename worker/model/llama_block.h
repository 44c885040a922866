// One transformer block of a Llama: forward, and backward in two halves that may run separately.
//
//   input ─┬─► norm ─► q,k,v ─► RoPE ─► attention ─► o ─► + ─┬─► norm ─► gate,up ─► SwiGLU ─► down ─► + ─► output
//          └──────────────────────────────────────────────►┘ └──────────────────────────────────────►┘
//                                                         middle
//
// BackwardInput goes through the picture from right to left and leaves the gradient of every linear's and norm's output
// in BlockGradients; BackwardWeight needs these and BlockActivations, nothing else, so that a pipeline schedule may run
// it later. Weights come as the nine tensors of the block, in the order of BlockTensor (Hugging Face's).
// Buffers belong to one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/run_config.h"
#include "worker/device/attention.h"
#include "worker/model/llama_layers.h"
#include "worker/model/tensor_values.h"

namespace causeway::worker {

enum BlockTensor { kQ, kK, kV, kO, kGate, kUp, kDown, kInputNorm, kMiddleNorm, kBlockTensors };

struct LlamaShape {
  // The shape for `batch` rows of `sequence` tokens.
  LlamaShape(const core::LlamaConfig& config, int64_t batch, int64_t sequence);

  int64_t rows() const { return attention.batch * attention.sequence; }

  AttentionShape attention;
  int64_t hidden;
  int64_t kv_hidden;     // kv_heads · head_size
  int64_t intermediate;  // SwiGLU's width
  double norm_epsilon;
};

// The activations that the forward pass keeps. [rows, hidden] unless noted otherwise.
struct BlockActivations {
  explicit BlockActivations(const LlamaShape& shape);

  std::vector<float> input, normed_input, q, attended, middle, normed_middle;
  std::vector<float> k, v;                       // [rows, kv_hidden]; q and k after RoPE
  std::vector<float> probabilities;              // [batch, heads, sequence, sequence]
  std::vector<float> gate, up, activated;        // [rows, intermediate]
  std::vector<float> input_scale, middle_scale;  // [rows]
};

// The gradients that BackwardInput leaves for BackwardWeight, one for each value of the same name in BlockActivations.
struct BlockGradients {
  explicit BlockGradients(const LlamaShape& shape);

  std::vector<float> normed_input, q, attended, middle, normed_middle;
  std::vector<float> k, v;
  std::vector<float> gate, up, activated;
  std::vector<float> scratch;  // [sequence, sequence]
};

using BlockWeights = std::span<const std::span<const float>>;
using BlockWeightGradients = std::span<const std::span<float>>;

// Reads activations.input, fills the other activations, writes `output`, which may be activations.input itself.
void BlockForward(const LlamaShape& shape, const Rope& rope, BlockWeights weights, BlockActivations& activations,
                  float* output);

void BlockBackwardInput(const LlamaShape& shape, const Rope& rope, BlockWeights weights,
                        const BlockActivations& activations, const float* doutput, BlockGradients& gradients,
                        float* dinput);

void BlockBackwardWeight(const LlamaShape& shape, const BlockActivations& activations, const float* doutput,
                         const BlockGradients& gradients, BlockWeightGradients dweights);

}  // namespace causeway::worker
