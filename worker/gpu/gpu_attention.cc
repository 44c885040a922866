#include "worker/gpu/gpu_attention.h"

#include <cmath>

namespace causeway::worker {

using offload::Queue;

GpuAttention::Operand GpuAttention::Q(const float* qkv, int64_t row, int64_t head) const {
  return {qkv + row * shape_.sequence * stride() + head * shape_.head_size, stride(), group() * shape_.head_size};
}

GpuAttention::Operand GpuAttention::K(const float* qkv, int64_t row) const {
  return {qkv + row * shape_.sequence * stride() + shape_.heads * shape_.head_size, stride(), shape_.head_size};
}

GpuAttention::Operand GpuAttention::V(const float* qkv, int64_t row) const {
  return {K(qkv, row).data + shape_.kv_heads * shape_.head_size, stride(), shape_.head_size};
}

GpuAttention::Operand GpuAttention::Out(const float* out, int64_t row, int64_t head) const {
  const int64_t width = shape_.heads * shape_.head_size;
  return {out + row * shape_.sequence * width + head * shape_.head_size, width, group() * shape_.head_size};
}

GpuAttention::Operand GpuAttention::Scores(const float* scores, int64_t head) const {
  const int64_t n = shape_.sequence;
  return {scores + head * n * n, n, group() * n * n};
}

void GpuAttention::Product(int64_t m, int64_t n, int64_t k, float alpha, const Operand& a, bool a_transposed,
                           const Operand& b, bool b_transposed, float beta, const Operand& c) const {
  const auto matrix = [](const Operand& operand, bool transposed) {
    return DeviceMatrix{const_cast<float*>(operand.data), operand.stride, ValueType::kFloat32, transposed};
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

void GpuAttention::Probabilities(const float* qkv, int64_t row) const {
  const int64_t n = shape_.sequence, size = shape_.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  for (int64_t head = 0; head < group(); ++head) {
    Product(n, n, size, scale, Q(qkv, row, head), false, K(qkv, row), true, 0, Scores(scores_, head));
  }
  backend_->Launch(Queue::kCompute, CausalSoftmaxKernel<float>{scores_, shape_.heads * n, n});
}

void GpuAttention::Forward(const float* qkv, float* out) const {
  const int64_t n = shape_.sequence, size = shape_.head_size;
  for (int64_t row = 0; row < shape_.batch; ++row) {
    Probabilities(qkv, row);
    for (int64_t head = 0; head < group(); ++head) {
      Product(n, size, n, 1, Scores(scores_, head), false, V(qkv, row), false, 0, Out(out, row, head));
    }
  }
}

void GpuAttention::Backward(const float* qkv, const float* dout, float* dqkv) const {
  const int64_t n = shape_.sequence, size = shape_.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  for (int64_t row = 0; row < shape_.batch; ++row) {
    Probabilities(qkv, row);
    for (int64_t head = 0; head < group(); ++head) {
      Product(n, n, size, 1, Out(dout, row, head), false, V(qkv, row), true, 0, Scores(dscores_, head));
    }
    for (int64_t head = 0; head < group(); ++head) {  // P, before dS takes the place of dP
      const float added = head == 0 ? 0.0f : 1.0f;
      Product(n, size, n, 1, Scores(scores_, head), true, Out(dout, row, head), false, added, V(dqkv, row));
    }
    backend_->Launch(Queue::kCompute, SoftmaxBackwardKernel<float>{scores_, dscores_, shape_.heads * n, n});
    for (int64_t head = 0; head < group(); ++head) {
      const float added = head == 0 ? 0.0f : 1.0f;
      Product(n, size, n, scale, Scores(dscores_, head), false, K(qkv, row), false, 0, Q(dqkv, row, head));
      Product(n, size, n, scale, Scores(dscores_, head), true, Q(qkv, row, head), false, added, K(dqkv, row));
    }
  }
}

}  // namespace causeway::worker
