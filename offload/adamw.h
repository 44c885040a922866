// The inner optimizers' arithmetic on host memory, in an order that every other implementation must match bit for bit.
//
//   gradient g ──┐
//   moments m, v ┼─► AdamWStep ─► m, v, p in place        one pass over memory, 28 bytes a parameter
//   parameters p ┘
//
// AdamW (arXiv 1711.05101, with bias correction), t counted from 1, every line one rounding where it says fma:
//
//   m ← fma(g, 1−β1, m·β1)             d = fma(√v, 1/√(1−β2^t), ε)      p ← fma(p, −lr·wd, p)
//   v ← fma(g², 1−β2, v·β2)            u = m / d                        p ← fma(u, −lr/(1−β1^t), p)
//
// g², m and v below 2⁻¹⁰⁰ in magnitude become 0 by an explicit compare: state near 1e-38 is denormal, which makes CPUs
// 12 to 15 times slower, and a processor mode would not give the same bits elsewhere. Moments start at zero, which the
// caller provides. Values are not checked: a NaN in g spreads. Spans have equal sizes, anything else is the caller's
// bug. Thread-safe on disjoint spans. Source: Deep Optimizer States (arXiv 2410.21316).
#pragma once

#include <cstdint>
#include <span>

namespace causeway::offload {

inline constexpr float kSmallestState = 0x1p-100f;

struct AdamWParameters {
  double lr = 3e-3;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

// What step t needs of them: computed in double, rounded to float once.
struct AdamWConstants {
  AdamWConstants(const AdamWParameters& parameters, int64_t t);

  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_scale;  // 1/√(1−β2^t)
  float epsilon;
  float minus_decay;  // −lr·wd
  float minus_lr;     // −lr/(1−β1^t)
};

void AdamWStep(const AdamWConstants& constants, std::span<const float> gradient, std::span<float> first_moment,
               std::span<float> second_moment, std::span<float> parameters);

// Plain SGD: p ← fma(p, −lr·wd, p) unless wd is 0, then p ← fma(g, −lr, p). No state.
void SgdStep(double lr, double weight_decay, std::span<const float> gradient, std::span<float> parameters);

}  // namespace causeway::offload
