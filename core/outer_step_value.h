// One value of core::OuterStep, for loops that do something else beside it: the arithmetic has one place. Pure.
#pragma once

#include <cmath>

namespace causeway::core {

inline void StepValue(float mu, float minus_eta, float g, float& v, float& w) {
  v = std::fma(mu, v, g);
  const float s = std::fma(mu, v, g);
  w = std::fma(minus_eta, s, w);
}

}  // namespace causeway::core
