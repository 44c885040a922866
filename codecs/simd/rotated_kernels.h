// The rotation, and the codecs of one bit: sign and rotated_sign.
#pragma once

#include "codecs/simd/block_kernels.h"

namespace causeway::codecs::simd {

// The four words of codecs/rotation.h: outputs 4 · block … of splitmix64 that starts at `seed`.
CAUSEWAY_LANES void SignWords(uint64_t seed, int64_t block, uint64_t (&words)[4]) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  CAUSEWAY_UNROLL
  for (int w = 0; w < 4; ++w) {
    uint64_t x = seed + (4 * static_cast<uint64_t>(block) + w + 1) * kStep;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    words[w] = x ^ (x >> 31);
  }
}

// Inside a vector both halves of a pair are one fma: a − b is b · −1 + a, exactly.
template <class L, int kDistance>
CAUSEWAY_LANES void StageOfLanes(typename L::Float& x) {
  constexpr float kSigns[4][kLanes] = {{1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
                                       {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
                                       {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
                                       {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
  constexpr int kStage = kDistance == 1 ? 0 : kDistance == 2 ? 1 : kDistance == 4 ? 2 : 3;
  x = L::Fma(x, L::Table(kSigns[kStage]), L::template Exchange<kDistance>(x));
}

template <class L, int kDistance>
CAUSEWAY_LANES void StageOfVectors(Block<L>& x) {
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    if ((v & kDistance) == 0) {
      const typename L::Float a = x.v[v], b = x.v[v | kDistance];
      x.v[v] = L::Add(a, b);
      x.v[v | kDistance] = L::Sub(a, b);
    }
  }
}

// Radix-2 stages of distance 1 to 8 are between lanes, of 16 to 128 between vectors.
template <class L>
CAUSEWAY_LANES void HadamardOfLanes(typename L::Float& x) {
  StageOfLanes<L, 1>(x);
  StageOfLanes<L, 2>(x);
  StageOfLanes<L, 4>(x);
  StageOfLanes<L, 8>(x);
}
template <class L>
CAUSEWAY_LANES void HadamardOfVectors(Block<L>& x) {
  StageOfVectors<L, 1>(x);
  StageOfVectors<L, 2>(x);
  StageOfVectors<L, 4>(x);
  StageOfVectors<L, 8>(x);
}

inline constexpr float kRotationNorm = 0x1p-4f;  // 1 / √256

template <class L>
CAUSEWAY_LANES void Rotate(typename L::Plane signs, Block<L>& x) {
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    x.v[v] = L::FlipSigns(x.v[v], signs, v);
    HadamardOfLanes<L>(x.v[v]);
  }
  HadamardOfVectors<L>(x);
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) x.v[v] = L::Mul(x.v[v], L::Set(kRotationNorm));
}

// The signs are flipped together with the norm: x · −n is −(x · n).
template <class L>
CAUSEWAY_LANES void Unrotate(typename L::Plane signs, Block<L>& x) {
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) HadamardOfLanes<L>(x.v[v]);
  HadamardOfVectors<L>(x);
  const typename L::Float norm = L::Set(kRotationNorm);
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) x.v[v] = L::Mul(x.v[v], L::FlipSigns(norm, signs, v));
}

// kLimitExponent: kMaxExponent for sign, kMaxRotatedExponent for rotated_sign.
template <class L, int kLimitExponent>
struct SignKernel {
  static constexpr int64_t kScaleBytes = 2;
  static constexpr int64_t kCodeBytes = 32;
  static constexpr int kTogether = 1;
  struct State {
    float sum;
    float scale;
  };

  CAUSEWAY_LANES static void Summarize(const Block<L>& d, State& state) {
    typename L::Float sum = L::Set(0.0f);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) sum = L::Add(sum, L::Abs(d.v[v]));
    state.sum = L::Sum(sum);
  }
  CAUSEWAY_LANES static void Normalize(const Block<L>&, State&) {}
  // A sum of magnitudes is never below one of them.
  CAUSEWAY_LANES static bool InRange(const State& state) { return state.sum < FloatOf(kMaxMagnitudeBits); }

  CAUSEWAY_LANES static void ChooseScale(const Block<L>&, State& state, ScaleConstants constants, uint8_t* scale,
                                         uint8_t*) {
    const float mean = state.sum * constants.inverse_count;
    state.scale = StoreScale<L, kLimitExponent>(constants.gain * mean, scale);
  }

  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const State& state, uint8_t* codes, Emit emit) {
    const typename L::Float level = L::Set(state.scale);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; v += 4) {
      L::StoreMasks(L::Negative(d.v[v]), L::Negative(d.v[v + 1]), L::Negative(d.v[v + 2]), L::Negative(d.v[v + 3]),
                    codes + 2 * v);
    }
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) emit(v, d.v[v], L::WithSignOf(level, d.v[v]));
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t* scale, const uint8_t* codes, Emit emit) {
    const typename L::Float level = L::Set(LoadScale(scale));
    const typename L::Plane signs = L::LoadPlane(codes);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) emit(v, L::FlipSigns(level, signs, v));
  }
};

}  // namespace causeway::codecs::simd
