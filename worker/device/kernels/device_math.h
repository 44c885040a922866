// The functions for which a GPU has instructions of its own, each beside its twin for the host.
//
// The device's are as exact as the twins, to within a few units in the last place, and take a quarter of the
// instructions: the classifier and SwiGLU are bound by these. Kernels whose bits must be the host's
// (value_kernels.h) use only the rounding to bfloat16, which is the same for all numbers; a NaN stays some NaN.
#pragma once

#include <cstdint>

#include "core/anywhere.h"
#include "core/bfloat16.h"
#include "worker/device/vector_math.h"

namespace causeway::worker {

// e^x for x from −87 to 87, beyond which x is clamped.
CAUSEWAY_ANYWHERE float Exponential(float x) {
#ifdef __CUDA_ARCH__
  constexpr float kLimit = 87.0f, kLn2 = 0.693147181f;
  constexpr float kLog2E = 1.44269502f, kLog2ERest = 1.92596303e-8f;
  x = x < -kLimit ? -kLimit : x;
  x = x > kLimit ? kLimit : x;
  // e^x = 2^t · 2^rest, where t is x log2(e) rounded and the rest so small that 2^rest = 1 + rest ln 2.
  const float t = x * kLog2E;
  const float rest = __fmaf_rn(x, kLog2ERest, __fmaf_rn(x, kLog2E, -t));
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  return __fmaf_rn(power, rest * kLn2, power);
#else
  return FastExp(x);
#endif
}

// 1/x, for normal x whose reciprocal is normal.
CAUSEWAY_ANYWHERE float Reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
#else
  return 1.0f / x;
#endif
}

CAUSEWAY_ANYWHERE float Sigmoid(float x) { return Reciprocal(1.0f + Exponential(-x)); }

// Two values as bfloat16, to nearest, ties to even: `low` in the lower half.
CAUSEWAY_ANYWHERE uint32_t Bfloat16Pair(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return core::ToBfloat16(low) | static_cast<uint32_t>(core::ToBfloat16(high)) << 16;
#endif
}

}  // namespace causeway::worker
