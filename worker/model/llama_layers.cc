#include "worker/model/llama_layers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/multiversion.h"
#include "worker/device/blas_kernels.h"
#include "worker/device/vector_math.h"

namespace causeway::worker {

void Linear(int64_t rows, int64_t in, int64_t out, const float* x, const float* w, float* y) {
  Gemm(rows, out, in, 1, {x, in}, {w, in, true}, 0, y, out);
}

void LinearAdd(int64_t rows, int64_t in, int64_t out, const float* x, const float* w, float* y) {
  Gemm(rows, out, in, 1, {x, in}, {w, in, true}, 1, y, out);
}

void LinearBackwardInput(int64_t rows, int64_t in, int64_t out, const float* dy, const float* w, float* dx) {
  Gemm(rows, in, out, 1, {dy, out}, {w, in}, 0, dx, in);
}

void LinearBackwardInputAdd(int64_t rows, int64_t in, int64_t out, const float* dy, const float* w, float* dx) {
  Gemm(rows, in, out, 1, {dy, out}, {w, in}, 1, dx, in);
}

void LinearBackwardWeight(int64_t rows, int64_t in, int64_t out, const float* dy, const float* x, float* dw) {
  Gemm(out, in, rows, 1, {dy, out, true}, {x, in}, 1, dw, in);
}

CAUSEWAY_MULTIVERSION
void RmsNorm(int64_t rows, int64_t size, double epsilon, const float* x, const float* w, float* y, float* scale) {
  for (int64_t row = 0; row < rows; ++row, x += size, y += size) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; ++i) squares += x[i] * x[i];
    const float r = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(size) + epsilon));
    for (int64_t i = 0; i < size; ++i) y[i] = x[i] * r * w[i];
    scale[row] = r;
  }
}

// dx_i = r (w_i dy_i − x_i · r²/n · Σ_j w_j dy_j x_j)
CAUSEWAY_MULTIVERSION
void RmsNormBackwardInputAdd(int64_t rows, int64_t size, const float* dy, const float* x, const float* w,
                             const float* scale, float* dx) {
  for (int64_t row = 0; row < rows; ++row, x += size, dy += size, dx += size) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < size; ++i) dot += w[i] * dy[i] * x[i];
    const float r = scale[row];
    const float pull = r * r * r / static_cast<float>(size) * dot;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) dx[i] += r * w[i] * dy[i] - pull * x[i];
  }
}

CAUSEWAY_MULTIVERSION
void RmsNormBackwardWeight(int64_t rows, int64_t size, const float* dy, const float* x, const float* scale, float* dw) {
  for (int64_t row = 0; row < rows; ++row, x += size, dy += size) {
    const float r = scale[row];
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) dw[i] += dy[i] * x[i] * r;
  }
}

namespace {

double Scaled(const core::RopeScaling& scaling, double frequency) {
  const double wave = 2 * std::numbers::pi / frequency;  // in tokens
  const double turns = static_cast<double>(scaling.original_max_position_embeddings) / wave;
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - share) * frequency / scaling.factor + share * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(int64_t head_size, double theta, const std::optional<core::RopeScaling>& scaling) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_size / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    frequencies.push_back(scaling ? Scaled(*scaling, frequency) : frequency);
  }
  return frequencies;
}

Rope::Rope(int64_t sequence, std::span<const double> frequencies)
    : sequence_(sequence), half_(std::ssize(frequencies)) {
  for (int64_t position = 0; position < sequence; ++position) {
    for (const double frequency : frequencies) {
      cosines_.push_back(static_cast<float>(std::cos(static_cast<double>(position) * frequency)));
      sines_.push_back(static_cast<float>(std::sin(static_cast<double>(position) * frequency)));
    }
  }
}

CAUSEWAY_MULTIVERSION
void Rope::Apply(int64_t rows, int64_t heads, float sign, float* x) const {
  const int64_t half = half_;
  for (int64_t row = 0; row < rows; ++row) {
    const float* cosine = cosines_.data() + row % sequence_ * half;
    const float* sine = sines_.data() + row % sequence_ * half;
    for (int64_t head = 0; head < heads; ++head, x += 2 * half) {
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float first = x[i];
        const float second = x[i + half];
        x[i] = first * cosine[i] - sign * second * sine[i];
        x[i + half] = second * cosine[i] + sign * first * sine[i];
      }
    }
  }
}

CAUSEWAY_MULTIVERSION
void SwiGlu(int64_t size, const float* gate, const float* up, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) y[i] = gate[i] * Logistic(gate[i]) * up[i];
}

// silu'(x) = σ(x) (1 + x (1 − σ(x)))
CAUSEWAY_MULTIVERSION
void SwiGluBackwardInput(int64_t size, const float* dy, const float* gate, const float* up, float* dgate, float* dup) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float sigma = Logistic(gate[i]);
    const float d = dy[i];
    dup[i] = d * gate[i] * sigma;
    dgate[i] = d * up[i] * sigma * (1 + gate[i] * (1 - sigma));
  }
}

void Embedding(std::span<const int32_t> tokens, int64_t size, const float* w, float* y) {
  for (size_t row = 0; row < tokens.size(); ++row) std::copy_n(w + tokens[row] * size, size, y + row * size);
}

CAUSEWAY_MULTIVERSION
void EmbeddingBackwardWeight(std::span<const int32_t> tokens, int64_t size, const float* dy, float* dw) {
  for (const int32_t token : tokens) {
    float* to = dw + token * size;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) to[i] += dy[i];
    dy += size;
  }
}

CAUSEWAY_MULTIVERSION
double CrossEntropy(std::span<const int32_t> targets, int64_t vocab, float* logits) {
  double loss = 0;
  for (const int32_t target : targets) {
    float largest = logits[0];
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, logits[i]);
    const double target_logit = logits[target];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < vocab; ++i) {
      const float e = FastExp(logits[i] - largest);
      logits[i] = e;
      sum += e;
    }
    const float inverse = 1 / sum;
    for (int64_t i = 0; i < vocab; ++i) logits[i] *= inverse;
    loss += std::log(static_cast<double>(sum)) + largest - target_logit;
    logits += vocab;
  }
  return loss;
}

CAUSEWAY_MULTIVERSION
void CrossEntropyBackwardInput(std::span<const int32_t> targets, int64_t vocab, float factor, float* probabilities) {
  for (const int32_t target : targets) {
    for (int64_t i = 0; i < vocab; ++i) probabilities[i] *= factor;
    probabilities[target] -= factor;
    probabilities += vocab;
  }
}

}  // namespace causeway::worker
