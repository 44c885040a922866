// Attention on a device by matrix products: for any backend, and the reference of faster ones.
//
//   a batch row at a time   S = q·kᵀ/√size ─► P = softmax(S), causal ─► out = P·v      all heads: [heads, n, n] values
//   backward                P again, dP = dout·vᵀ ─► dS ─► dq, dk, dv (summed over a group's query heads, in order)
//
// It keeps no statistics: the scores are recomputed, in two buffers that all layers share.
#pragma once

#include <memory>

#include "worker/device/compute_backend.h"
#include "worker/device/device_attention.h"

namespace causeway::worker {

template <typename T>
class ProductAttention final : public DeviceAttention {
 public:
  ProductAttention(const AttentionShape& shape, ComputeBackend* backend) : shape_(shape), backend_(backend) {}

  AttentionKind kind() const override { return AttentionKind::kOwn; }
  int64_t statistics() const override { return 0; }
  // Scores and their gradients, in float32 and, where T is narrower, as T.
  int64_t buffer_bytes() const override {
    return 2 * scores() * static_cast<int64_t>(kNarrow ? sizeof(float) + sizeof(T) : sizeof(float));
  }
  void SetBuffer(void* memory) override;
  void Forward(const void* qkv, void* out, float* statistics) override;
  void Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) override;

 private:
  static constexpr bool kNarrow = sizeof(T) < sizeof(float);

  // Base pointer for one (batch row, query head), and its stride between groups.
  template <typename Value>
  struct Operand {
    const Value* data = nullptr;
    int64_t stride = 0, step = 0;
  };

  int64_t scores() const { return shape_.heads * shape_.sequence * shape_.sequence; }
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
  T *probabilities_ = nullptr, *dscores_ = nullptr;  // the same memory as these, where T is float32
};

std::unique_ptr<DeviceAttention> MakeProductAttention(const AttentionShape& shape, ValueType type,
                                                      ComputeBackend* backend);

}  // namespace causeway::worker
