#include "core/outer_step.h"

#include <algorithm>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::core {

CAUSEWAY_MULTIVERSION
void OuterStep(const OuterParameters& outer, std::span<const float> gradient, std::span<float> momentum,
               std::span<float> anchor) {
  CHECK(gradient.size() == momentum.size() && gradient.size() == anchor.size());
  const float mu = outer.momentum, minus_eta = -outer.lr, gain = outer.gain;
  for (size_t i = 0; i < gradient.size(); ++i) StepValue(mu, minus_eta, gain, gradient[i], momentum[i], anchor[i]);
}

CAUSEWAY_MULTIVERSION
void OuterDirection(const OuterParameters& outer, std::span<const float> momentum, std::span<float> gradient) {
  CHECK(gradient.size() == momentum.size());
  const float mu = outer.momentum, gain = outer.gain;
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = DirectionValue(mu, gain, gradient[i], momentum[i]);
}

CAUSEWAY_MULTIVERSION
void Rebase(float lr, std::span<const float> step, std::span<float> local) {
  CHECK(step.size() == local.size());
  const float minus_eta = -lr;
  for (size_t i = 0; i < step.size(); ++i) local[i] = RebasedValue(minus_eta, step[i], local[i]);
}

CAUSEWAY_MULTIVERSION
void MixAnchor(float alpha, std::span<const float> anchor, std::span<float> local) {
  CHECK(anchor.size() == local.size());
  if (alpha == 1.0f) return;
  if (alpha == 0.0f) {
    std::copy(anchor.begin(), anchor.end(), local.begin());
    return;
  }
  const float anchor_weight = 1.0f - alpha;
  for (size_t i = 0; i < anchor.size(); ++i) local[i] = MixedValue(alpha, anchor_weight, anchor[i], local[i]);
}

CAUSEWAY_MULTIVERSION
void RoundMix(std::span<const float> anchor, std::span<const float> local, std::span<float> mixed) {
  CHECK(anchor.size() == local.size() && anchor.size() == mixed.size());
  for (size_t i = 0; i < anchor.size(); ++i) {
    const float rounded = RoundStochastically(mixed[i]);
    mixed[i] = RoundBits<16>(anchor[i]) == local[i] ? local[i] : rounded;
  }
}

CAUSEWAY_MULTIVERSION
void OuterGradient(std::span<const float> anchor, std::span<const float> local, std::span<float> gradient) {
  CHECK(anchor.size() == local.size() && anchor.size() == gradient.size());
  for (size_t i = 0; i < anchor.size(); ++i) gradient[i] = anchor[i] - local[i];
}

}  // namespace causeway::core
