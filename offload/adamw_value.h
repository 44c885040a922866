// One value's share of an AdamW step: the same source text for CPUs and GPUs, so that they give the same bits
// (offload/adamw.h has the formula). Compiled with -ffp-contract=off and --fmad=false: every fused multiply-add is
// written.
#pragma once

#include <cmath>

#include "core/anywhere.h"

namespace causeway::offload {

inline constexpr float kSmallestState = 0x1p-100f;
inline constexpr float kSmallestRoot = 0x1p-50f;  // its square is the smallest g²

// The constants of a step, each rounded to float once (MakeConstants in offload/adamw.h).
struct AdamWConstants {
  float gradient_scale;  // clipping: 1 where there is none
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_scale;  // 1/√(1−β2^t)
  float epsilon;
  float minus_decay;  // −lr·wd
  float minus_lr;     // −lr/(1−β1^t)
};

CAUSEWAY_ANYWHERE float FlushSmall(float x) { return std::fabs(x) < kSmallestState ? 0.0f : x; }

// g, as the moments take it: scaled, and 0 where it is tiny.
CAUSEWAY_ANYWHERE float ScaledGradient(const AdamWConstants& c, float gradient) {
  return FlushSmall(gradient) * c.gradient_scale;
}

CAUSEWAY_ANYWHERE float NextFirstMoment(const AdamWConstants& c, float g, float first_moment) {
  return FlushSmall(std::fma(g, c.one_minus_beta1, FlushSmall(first_moment) * c.beta1));
}

CAUSEWAY_ANYWHERE float NextParameter(const AdamWConstants& c, float m, float v, float parameter) {
  const float u = m / std::fma(std::sqrt(v), c.root_scale, c.epsilon);
  const float decayed = std::fma(parameter, c.minus_decay, parameter);
  return std::fma(u, c.minus_lr, decayed);
}

CAUSEWAY_ANYWHERE void UpdateValue(const AdamWConstants& c, float gradient, float& first_moment, float& second_moment,
                                   float& parameter) {
  const float g = ScaledGradient(c, gradient);
  // Compared before it is squared: a product that is denormal costs as much as a denormal operand.
  const float large = std::fabs(g) < kSmallestRoot ? 0.0f : g;
  const float g2 = large * large;
  first_moment = NextFirstMoment(c, g, first_moment);
  second_moment = FlushSmall(std::fma(g2, c.one_minus_beta2, FlushSmall(second_moment) * c.beta2));
  parameter = NextParameter(c, first_moment, second_moment, parameter);
}

}  // namespace causeway::offload
