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

template <typename T>
class GpuAttention {
 public:
  // Its buffers' bytes: scores and their gradients, in float32 and, where T is narrower, as T.
  static int64_t BufferBytes(const AttentionShape& shape) {
    const int64_t values = shape.heads * shape.sequence * shape.sequence;
    return 2 * values * static_cast<int64_t>(kNarrow ? sizeof(float) + sizeof(T) : sizeof(float));
  }

  GpuAttention(const AttentionShape& shape, ComputeBackend* backend) : shape_(shape), backend_(backend) {}

  void SetBuffers(void* memory);  // on the device

  // out is [rows, heads · size].
  void Forward(const T* qkv, T* out) const;
  void Backward(const T* qkv, const T* dout, T* dqkv) const;

 private:
  static constexpr bool kNarrow = sizeof(T) < sizeof(float);

  // Where a matrix of one (batch row, query head of its group) begins, and how it goes on from one group to the next.
  template <typename Value>
  struct Operand {
    const Value* data = nullptr;
    int64_t stride = 0, step = 0;
  };

  int64_t stride() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size; }
  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  Operand<T> Q(const T* qkv, int64_t row, int64_t head) const;
  Operand<T> K(const T* qkv, int64_t row) const;
  Operand<T> V(const T* qkv, int64_t row) const;
  Operand<T> Out(const T* out, int64_t row, int64_t head) const;
  template <typename Value>
  Operand<Value> Scores(const Value* scores, int64_t head) const;
  // c ← α op(a) · op(b) + β c for every group at once.
  template <typename A, typename B, typename C>
  void Product(int64_t m, int64_t n, int64_t k, float alpha, const Operand<A>& a, bool a_transposed,
               const Operand<B>& b, bool b_transposed, float beta, const Operand<C>& c) const;
  void MakeProbabilities(const T* qkv, int64_t row) const;

  const AttentionShape shape_;
  ComputeBackend* const backend_;
  float *scores_ = nullptr, *dprobabilities_ = nullptr;
  T *probabilities_ = nullptr, *dscores_ = nullptr;  // in place of these, where T is float32
};

}  // namespace causeway::worker
