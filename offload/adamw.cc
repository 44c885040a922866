#include "offload/adamw.h"

#include <cmath>

#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::offload {
namespace {

inline float FlushSmall(float x) { return std::fabs(x) < kSmallestState ? 0.0f : x; }

}  // namespace

AdamWConstants::AdamWConstants(const AdamWParameters& parameters, int64_t t)
    : beta1(static_cast<float>(parameters.beta1)),
      one_minus_beta1(static_cast<float>(1 - parameters.beta1)),
      beta2(static_cast<float>(parameters.beta2)),
      one_minus_beta2(static_cast<float>(1 - parameters.beta2)),
      root_scale(static_cast<float>(1 / std::sqrt(1 - std::pow(parameters.beta2, static_cast<double>(t))))),
      epsilon(static_cast<float>(parameters.epsilon)),
      minus_decay(static_cast<float>(-parameters.lr * parameters.weight_decay)),
      minus_lr(static_cast<float>(-parameters.lr / (1 - std::pow(parameters.beta1, static_cast<double>(t))))) {
  CHECK(t >= 1);
}

CAUSEWAY_MULTIVERSION
void AdamWStep(const AdamWConstants& constants, std::span<const float> gradient, std::span<float> first_moment,
               std::span<float> second_moment, std::span<float> parameters) {
  CHECK(gradient.size() == first_moment.size() && gradient.size() == second_moment.size() &&
        gradient.size() == parameters.size());
  const AdamWConstants c = constants;  // a copy, so that the compiler knows that no store below changes it
  const float* gradients = gradient.data();
  float* ms = first_moment.data();
  float* vs = second_moment.data();
  float* ps = parameters.data();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradients[i];
    const float g2 = FlushSmall(g * g);
    const float m = FlushSmall(std::fma(g, c.one_minus_beta1, ms[i] * c.beta1));
    const float v = FlushSmall(std::fma(g2, c.one_minus_beta2, vs[i] * c.beta2));
    const float u = m / std::fma(std::sqrt(v), c.root_scale, c.epsilon);
    const float decayed = std::fma(ps[i], c.minus_decay, ps[i]);
    ms[i] = m;
    vs[i] = v;
    ps[i] = std::fma(u, c.minus_lr, decayed);
  }
}

CAUSEWAY_MULTIVERSION
void SgdStep(double lr, double weight_decay, std::span<const float> gradient, std::span<float> parameters) {
  CHECK(gradient.size() == parameters.size());
  const float minus_lr = static_cast<float>(-lr);
  const float minus_decay = static_cast<float>(-lr * weight_decay);
  float* ps = parameters.data();
  if (weight_decay != 0) {
    for (size_t i = 0; i < parameters.size(); ++i) ps[i] = std::fma(ps[i], minus_decay, ps[i]);
  }
  for (size_t i = 0; i < parameters.size(); ++i) ps[i] = std::fma(gradient[i], minus_lr, ps[i]);
}

}  // namespace causeway::offload
