#include "worker/device/product_attention.h"

#include <cmath>

namespace causeway::worker {

using offload::Queue;

template <typename T>
auto ProductAttention<T>::Q(const T* qkv, int64_t row, int64_t head) const -> Operand<T> {
  return {qkv + row * shape_.sequence * stride() + head * shape_.head_size, stride(), group() * shape_.head_size};
}

template <typename T>
auto ProductAttention<T>::K(const T* qkv, int64_t row) const -> Operand<T> {
  return {qkv + row * shape_.sequence * stride() + shape_.heads * shape_.head_size, stride(), shape_.head_size};
}

template <typename T>
auto ProductAttention<T>::V(const T* qkv, int64_t row) const -> Operand<T> {
  return {K(qkv, row).data + shape_.kv_heads * shape_.head_size, stride(), shape_.head_size};
}

template <typename T>
auto ProductAttention<T>::Out(const T* out, int64_t row, int64_t head) const -> Operand<T> {
  const int64_t width = shape_.heads * shape_.head_size;
  return {out + row * shape_.sequence * width + head * shape_.head_size, width, group() * shape_.head_size};
}

template <typename T>
template <typename Value>
auto ProductAttention<T>::Scores(const Value* scores, int64_t head) const -> Operand<Value> {
  const int64_t n = shape_.sequence;
  return {scores + head * n * n, n, group() * n * n};
}

template <typename T>
void ProductAttention<T>::SetBuffer(void* memory) {
  scores_ = static_cast<float*>(memory);
  dprobabilities_ = scores_ + scores();
  if constexpr (kNarrow) {
    probabilities_ = reinterpret_cast<T*>(dprobabilities_ + scores());
    dscores_ = probabilities_ + scores();
  } else {
    probabilities_ = scores_;
    dscores_ = dprobabilities_;
  }
}

template <typename T>
template <typename A, typename B, typename C>
void ProductAttention<T>::Product(int64_t m, int64_t n, int64_t k, float alpha, const Operand<A>& a, bool a_transposed,
                                  const Operand<B>& b, bool b_transposed, float beta, const Operand<C>& c) const {
  const auto matrix = []<typename Value>(const Operand<Value>& operand, bool transposed) {
    return DeviceMatrix{const_cast<Value*>(operand.data), operand.stride, kTypeOf<Value>, transposed};
  };
  backend_->Gemm(Queue::kCompute, {.m = m,
                                   .n = n,
                                   .k = k,
                                   .a = matrix(a, a_transposed),
                                   .b = matrix(b, b_transposed),
                                   .c = matrix(c, false),
                                   .alpha = alpha,
                                   .beta = beta,
                                   .batch = shape_.kv_heads,
                                   .a_step = a.step,
                                   .b_step = b.step,
                                   .c_step = c.step});
}

template <typename T>
void ProductAttention<T>::MakeProbabilities(const T* qkv, int64_t row) const {
  const int64_t n = shape_.sequence, size = shape_.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  for (int64_t head = 0; head < group(); ++head) {
    Product(n, n, size, scale, Q(qkv, row, head), false, K(qkv, row), true, 0, Scores(scores_, head));
  }
  backend_->Launch(Queue::kCompute, CausalSoftmaxKernel<T>{scores_, probabilities_, shape_.heads * n, n});
}

template <typename T>
void ProductAttention<T>::Forward(const void* given, void* result, float*) {
  const T* const qkv = static_cast<const T*>(given);
  T* const out = static_cast<T*>(result);
  const int64_t n = shape_.sequence, size = shape_.head_size;
  for (int64_t row = 0; row < shape_.batch; ++row) {
    MakeProbabilities(qkv, row);
    for (int64_t head = 0; head < group(); ++head) {
      Product(n, size, n, 1, Scores(probabilities_, head), false, V(qkv, row), false, 0, Out(out, row, head));
    }
  }
}

template <typename T>
void ProductAttention<T>::Backward(const void* given, const void*, const float*, const void* gradient, void* result) {
  const T *const qkv = static_cast<const T*>(given), *const dout = static_cast<const T*>(gradient);
  T* const dqkv = static_cast<T*>(result);
  const int64_t n = shape_.sequence, size = shape_.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  for (int64_t row = 0; row < shape_.batch; ++row) {
    MakeProbabilities(qkv, row);
    for (int64_t head = 0; head < group(); ++head) {
      Product(n, n, size, 1, Out(dout, row, head), false, V(qkv, row), true, 0, Scores(dprobabilities_, head));
    }
    for (int64_t head = 0; head < group(); ++head) {  // P, before dS takes the place of dP
      const float added = head == 0 ? 0.0f : 1.0f;
      Product(n, size, n, 1, Scores(probabilities_, head), true, Out(dout, row, head), false, added, V(dqkv, row));
    }
    backend_->Launch(Queue::kCompute,
                     SoftmaxBackwardKernel<T>{probabilities_, dprobabilities_, dscores_, shape_.heads * n, n});
    for (int64_t head = 0; head < group(); ++head) {
      const float added = head == 0 ? 0.0f : 1.0f;
      Product(n, size, n, scale, Scores(dscores_, head), false, K(qkv, row), false, 0, Q(dqkv, row, head));
      Product(n, size, n, scale, Scores(dscores_, head), true, Q(qkv, row, head), false, added, K(dqkv, row));
    }
  }
}

std::unique_ptr<DeviceAttention> MakeProductAttention(const AttentionShape& shape, ValueType type,
                                                      ComputeBackend* backend) {
  if (type == ValueType::kFloat32) return std::make_unique<ProductAttention<float>>(shape, backend);
  return std::make_unique<ProductAttention<Bfloat16>>(shape, backend);
}

}  // namespace causeway::worker
