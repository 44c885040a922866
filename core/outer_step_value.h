// One value of core::OuterStep, core::MixAnchor and core::Rebase, for loops that do other work at the same time, and
// for GPUs: the arithmetic is defined in one place. Pure.
#pragma once

#include <cmath>

#include "core/anywhere.h"

namespace causeway::core {

inline float DirectionValue(float mu, float gain, float g, float v) { return gain * std::fma(mu, v, g); }

inline void StepValue(float mu, float minus_eta, float gain, float g, float& v, float& w) {
  v = std::fma(mu, v, g);
  const float s = DirectionValue(mu, gain, g, v);
  w = std::fma(minus_eta, s, w);
}

// θ ← fma(α, θ, (1 − α) W), where `anchor_weight` is 1 − α.
CAUSEWAY_ANYWHERE float MixedValue(float alpha, float anchor_weight, float anchor, float local) {
  const float share = anchor_weight * anchor;
  return std::fma(alpha, local, share);
}

// θ ← fma(−η, s, θ).
CAUSEWAY_ANYWHERE float RebasedValue(float minus_eta, float step, float local) {
  return std::fma(minus_eta, step, local);
}

}  // namespace causeway::core
