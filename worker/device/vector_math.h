// exp and the logistic function in a form that compilers turn into vector instructions.
//
// The C library's expf is exact to half an ulp but takes one value at a time; softmax and SiLU need millions each step.
// exp(x) = 2^n · e^r with n = round(x / ln 2) and r = x − n ln 2 in two parts, so that |r| ≤ ln 2 / 2; e^r by Cephes'
// polynomial of degree 6. Relative error below 2e-7. Inputs beyond ±87 are clamped to ±87, where float32 ends.
#pragma once

#include <cstdint>

#include "core/anywhere.h"

namespace causeway::worker {

CAUSEWAY_ANYWHERE float FastExp(float x) {
  constexpr float kLimit = 87.0f;
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5·2^23: adding it leaves an integer in the low bits of the significand
  x = x < -kLimit ? -kLimit : x;
  x = x > kLimit ? kLimit : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = __builtin_bit_cast(uint32_t, shifted)
                            << 23;  // n, moved to where a float keeps its exponent
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p) + exponent);
}

CAUSEWAY_ANYWHERE float Logistic(float x) { return 1.0f / (1.0f + FastExp(-x)); }

}  // namespace causeway::worker
