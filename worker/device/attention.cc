#include "worker/device/attention.h"

#include <algorithm>
#include <cmath>

#include "core/multiversion.h"
#include "worker/device/blas_kernels.h"
#include "worker/device/vector_math.h"

namespace causeway::worker {
namespace {

// The place of one (batch row, head) in each array.
struct HeadPlace {
  int64_t q;  // also in out
  int64_t kv;
  int64_t matrix;   // sequence × sequence values
  float kv_factor;  // 0 for the first query head of a key head, which stores its gradient; then 1, added to it
};

HeadPlace Place(const AttentionShape& shape, int64_t row, int64_t head) {
  const int64_t group = shape.heads / shape.kv_heads;
  return {.q = (row * shape.sequence * shape.heads + head) * shape.head_size,
          .kv = (row * shape.sequence * shape.kv_heads + head / group) * shape.head_size,
          .matrix = (row * shape.heads + head) * shape.sequence * shape.sequence,
          .kv_factor = head % group == 0 ? 0.0f : 1.0f};
}

float ScoreScale(const AttentionShape& shape) { return 1 / std::sqrt(static_cast<float>(shape.head_size)); }

}  // namespace

// Row t of scores[n, n] becomes a softmax over its first t+1 values; the others, which are in the future, become 0.
CAUSEWAY_MULTIVERSION
void CausalSoftmax(int64_t n, float* scores) {
  for (int64_t t = 0; t < n; ++t, scores += n) {
    float largest = scores[0];
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i <= t; ++i) largest = std::max(largest, scores[i]);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i <= t; ++i) {
      const float e = FastExp(scores[i] - largest);
      scores[i] = e;
      sum += e;
    }
    const float inverse = 1 / sum;
    for (int64_t i = 0; i <= t; ++i) scores[i] *= inverse;
    std::fill(scores + t + 1, scores + n, 0.0f);
  }
}

// dS = P ∘ (dP − Σ_row dP ∘ P), in place of dP. Where P is 0, in the future, so is dS.
CAUSEWAY_MULTIVERSION
void SoftmaxBackward(int64_t n, const float* probabilities, float* gradient) {
  for (int64_t t = 0; t < n; ++t, probabilities += n, gradient += n) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; ++i) dot += probabilities[i] * gradient[i];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gradient[i] = probabilities[i] * (gradient[i] - dot);
  }
}

void Attention(const AttentionShape& shape, const float* q, const float* k, const float* v, float* probabilities,
               float* out) {
  const int64_t n = shape.sequence;
  const int64_t size = shape.head_size;
  const int64_t q_stride = shape.heads * size;
  const int64_t kv_stride = shape.kv_heads * size;
  for (int64_t row = 0; row < shape.batch; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const HeadPlace at = Place(shape, row, head);
      float* p = probabilities + at.matrix;
      Gemm(n, n, size, ScoreScale(shape), {q + at.q, q_stride}, {k + at.kv, kv_stride, true}, 0, p, n);
      CausalSoftmax(n, p);
      Gemm(n, size, n, 1, {p, n}, {v + at.kv, kv_stride}, 0, out + at.q, q_stride);
    }
  }
}

void AttentionBackwardInput(const AttentionShape& shape, const float* dout, const float* q, const float* k,
                            const float* v, const float* probabilities, float* scratch, float* dq, float* dk,
                            float* dv) {
  const int64_t n = shape.sequence;
  const int64_t size = shape.head_size;
  const int64_t q_stride = shape.heads * size;
  const int64_t kv_stride = shape.kv_heads * size;
  const float scale = ScoreScale(shape);
  for (int64_t row = 0; row < shape.batch; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const HeadPlace at = Place(shape, row, head);
      const float* p = probabilities + at.matrix;
      const Matrix d{dout + at.q, q_stride};
      Gemm(n, n, size, 1, d, {v + at.kv, kv_stride, true}, 0, scratch, n);
      SoftmaxBackward(n, p, scratch);
      Gemm(n, size, n, 1, {p, n, true}, d, at.kv_factor, dv + at.kv, kv_stride);
      Gemm(n, size, n, scale, {scratch, n}, {k + at.kv, kv_stride}, 0, dq + at.q, q_stride);
      Gemm(n, size, n, scale, {scratch, n, true}, {q + at.q, q_stride}, at.kv_factor, dk + at.kv, kv_stride);
    }
  }
}

}  // namespace causeway::worker
