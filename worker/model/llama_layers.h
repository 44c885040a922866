// The layers of a Llama as free functions, each with its backward pass in two: input gradient and weight gradient.
//
//   forward           y = f(x, w)
//   …BackwardInput    dx from dy (and what the forward pass kept)      needed at once: the layer below waits for it
//   …BackwardWeight   dw += … from x and dy                            may come later: pipeline schedules move it
//
// All tensors are row-major float32; a row is one token, rows = batch × sequence. Weight gradients are added to, so
// that micro-batches and tied weights accumulate; input gradients are stored, or added where the name says Add.
// The caller guarantees the shapes. Pure functions, thread-safe on disjoint outputs; sums have a fixed order, so equal
// inputs give equal bits on the same machine. Sources: arXiv 2302.13971 (Llama), 1910.07467 (RMSNorm), 2104.09864
// (RoPE), 2002.05202 (SwiGLU); the layout of weights and of RoPE (rotate-half) is Hugging Face's LlamaForCausalLM.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/run_config.h"

namespace causeway::worker {

// Linear: y[rows, out] = x[rows, in] · wᵀ, w[out, in]; LinearAdd: y += x · wᵀ.
void Linear(int64_t rows, int64_t in, int64_t out, const float* x, const float* w, float* y);
void LinearAdd(int64_t rows, int64_t in, int64_t out, const float* x, const float* w, float* y);
void LinearBackwardInput(int64_t rows, int64_t in, int64_t out, const float* dy, const float* w, float* dx);
void LinearBackwardInputAdd(int64_t rows, int64_t in, int64_t out, const float* dy, const float* w, float* dx);
void LinearBackwardWeight(int64_t rows, int64_t in, int64_t out, const float* dy, const float* x, float* dw);

// RMSNorm: y = x · r · w with r = 1/√(mean(x²) + ε) for each row, kept in scale[rows].
void RmsNorm(int64_t rows, int64_t size, double epsilon, const float* x, const float* w, float* y, float* scale);
void RmsNormBackwardInputAdd(int64_t rows, int64_t size, const float* dy, const float* x, const float* w,
                             const float* scale, float* dx);
void RmsNormBackwardWeight(int64_t rows, int64_t size, const float* dy, const float* x, const float* scale, float* dw);

// The angle by which each of the head_size/2 pairs of a head turns from one position to the next:
// theta^(−2i/head_size), scaled if the model requires it (Llama 3, arXiv 2407.21783; the formula is that of Hugging
// Face's rope_type llama3).
std::vector<double> RopeFrequencies(int64_t head_size, double theta, const std::optional<core::RopeScaling>& scaling);

// RoPE: rotates the pairs (x_i, x_{i+half}) of each head by the angle position · frequency_i, in place.
// A row's position is row mod sequence. The backward pass is the rotation by the negative angle.
class Rope {
 public:
  Rope(int64_t sequence, std::span<const double> frequencies);

  void Rotate(int64_t rows, int64_t heads, float* x) const { Apply(rows, heads, 1.0f, x); }
  void RotateBackwardInput(int64_t rows, int64_t heads, float* dx) const { Apply(rows, heads, -1.0f, dx); }

  // The tables, [sequence, half].
  const std::vector<float>& cosines() const { return cosines_; }
  const std::vector<float>& sines() const { return sines_; }

 private:
  void Apply(int64_t rows, int64_t heads, float sign, float* x) const;

  int64_t sequence_;
  int64_t half_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// SwiGLU's activation: y = silu(gate) · up, silu(x) = x / (1 + e^−x).
void SwiGlu(int64_t size, const float* gate, const float* up, float* y);
void SwiGluBackwardInput(int64_t size, const float* dy, const float* gate, const float* up, float* dgate, float* dup);

// Embedding: row i of y is row tokens[i] of w. There is no input gradient.
void Embedding(std::span<const int32_t> tokens, int64_t size, const float* w, float* y);
void EmbeddingBackwardWeight(std::span<const int32_t> tokens, int64_t size, const float* dy, float* dw);

// Softmax and cross-entropy: turns logits[rows, vocab] into probabilities in place and returns the sum over rows of
// −ln p(target), in nats. The backward pass turns these probabilities into factor · d(sum)/d(logits), in place.
double CrossEntropy(std::span<const int32_t> targets, int64_t vocab, float* logits);
void CrossEntropyBackwardInput(std::span<const int32_t> targets, int64_t vocab, float factor, float* probabilities);

}  // namespace causeway::worker
