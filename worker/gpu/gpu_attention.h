// Causal attention with grouped key and value heads on a device, by matrix products: for any backend, and the reference
// of faster ones.
//
//   a batch row at a time   S = q·kᵀ/√size ─► P = softmax(S), causal ─► out = P·v      of all heads: [heads, n, n]
//   values backward                P again, dP = dout·vᵀ ─► dS ─► dq, dk, dv (summed over a group's query heads, in
//   their order)
//
// q, k and v lie side by side in packed rows |q|k|v|, and so do their gradients. Nothing is kept but these: the scores
// are made again, in two buffers that all layers share. Sources: arXiv 1706.03762 section 3.2, 2305.13245.
#pragma once

#include "worker/gpu/compute_backend.h"
#include "worker/train/attention.h"

namespace causeway::worker {

class GpuAttention {
 public:
  // Of one buffer of scores.
  static int64_t ScoreBytes(const AttentionShape& shape) {
    return shape.heads * shape.sequence * shape.sequence * BytesOf(ValueType::kFloat32);
  }

  GpuAttention(const AttentionShape& shape, ComputeBackend* backend) : shape_(shape), backend_(backend) {}

  // The two buffers, in device memory.
  void SetBuffers(float* scores, float* dscores) {
    scores_ = scores;
    dscores_ = dscores;
  }

  // out is [rows, heads · size].
  void Forward(const float* qkv, float* out) const;
  void Backward(const float* qkv, const float* dout, float* dqkv) const;

 private:
  // Where a matrix of one (batch row, query head of its group) begins, and how it goes on from one group to the next.
  struct Operand {
    const float* data = nullptr;
    int64_t stride = 0, step = 0;
  };

  int64_t stride() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size; }
  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  Operand Q(const float* qkv, int64_t row, int64_t head) const;
  Operand K(const float* qkv, int64_t row) const;
  Operand V(const float* qkv, int64_t row) const;
  Operand Out(const float* out, int64_t row, int64_t head) const;
  Operand Scores(const float* scores, int64_t head) const;
  // c ← α op(a) · op(b) + β c for every group at once.
  void Product(int64_t m, int64_t n, int64_t k, float alpha, const Operand& a, bool a_transposed, const Operand& b,
               bool b_transposed, float beta, const Operand& c) const;
  void Probabilities(const float* qkv, int64_t row) const;  // into scores_

  const AttentionShape shape_;
  ComputeBackend* const backend_;
  float* scores_ = nullptr;
  float* dscores_ = nullptr;
};

}  // namespace causeway::worker
