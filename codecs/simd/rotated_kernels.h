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

template <class L>
CAUSEWAY_LANES void Butterfly(typename L::Float& a, typename L::Float& b) {
  const typename L::Float sum = L::Add(a, b);
  b = L::Sub(a, b);
  a = sum;
}

// Two stages, on the vectors first, first + kDistance, + 2 · kDistance and + 3 · kDistance.
template <class L, int kDistance>
CAUSEWAY_LANES void TwoStages(Block<L>& x, int first) {
  typename L::Float &a = x.v[first], &b = x.v[first + kDistance];
  typename L::Float &c = x.v[first + 2 * kDistance], &d = x.v[first + 3 * kDistance];
  Butterfly<L>(a, b);
  Butterfly<L>(c, d);
  Butterfly<L>(a, c);
  Butterfly<L>(b, d);
}

// Radix-2 stages of distance 1 to 8 are between lanes, of 16 to 128 between vectors. begin(v) does those between the
// lanes of vector v, finish(v) the work after the last stage. Where registers cannot hold a block, four vectors at a
// time go as far as they can.
template <class L, class Begin, class Finish>
CAUSEWAY_LANES void Hadamard(Block<L>& x, Begin begin, Finish finish) {
  constexpr bool kFewRegisters = requires { L::kVectorsInRegisters; };
  CAUSEWAY_UNROLL
  for (int four = 0; four < kVectors; four += 4) {
    CAUSEWAY_UNROLL
    for (int v = four; v < four + 4; ++v) begin(v);
    if constexpr (kFewRegisters) TwoStages<L, 1>(x, four);
  }
  if constexpr (!kFewRegisters) {
    CAUSEWAY_UNROLL
    for (int four = 0; four < kVectors; four += 4) TwoStages<L, 1>(x, four);
  }
  CAUSEWAY_UNROLL
  for (int first = 0; first < 4; ++first) {
    TwoStages<L, 4>(x, first);
    if constexpr (kFewRegisters) {
      CAUSEWAY_UNROLL
      for (int v = first; v < kVectors; v += 4) finish(v);
    }
  }
  if constexpr (!kFewRegisters) {
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) finish(v);
  }
}

template <class L>
CAUSEWAY_LANES void HadamardOfLanes(typename L::Float& x) {
  StageOfLanes<L, 1>(x);
  StageOfLanes<L, 2>(x);
  StageOfLanes<L, 4>(x);
  StageOfLanes<L, 8>(x);
}

inline constexpr float kRotationNorm = 0x1p-4f;  // 1 / √256

// The first and the last step of a transform.
template <class L>
struct FlipFirst {
  CAUSEWAY_LANES void operator()(int v) const {
    x.v[v] = L::FlipSigns(x.v[v], signs, v);
    HadamardOfLanes<L>(x.v[v]);
  }
  Block<L>& x;
  typename L::Plane signs;
};
template <class L>
struct NormLast {
  CAUSEWAY_LANES void operator()(int v) const { x.v[v] = L::Mul(x.v[v], L::Set(kRotationNorm)); }
  Block<L>& x;
};
template <class L>
struct LanesFirst {
  CAUSEWAY_LANES void operator()(int v) const { HadamardOfLanes<L>(x.v[v]); }
  Block<L>& x;
};
// The signs are flipped together with the norm: x · −n is −(x · n).
template <class L, class Emit>
struct FlipLast {
  CAUSEWAY_LANES void operator()(int v) const { emit(v, L::Mul(x.v[v], L::FlipSigns(norm, signs, v))); }
  Block<L>& x;
  typename L::Plane signs;
  typename L::Float norm;
  Emit emit;
};
template <class L>
struct IntoBlock {
  CAUSEWAY_LANES void operator()(int v, typename L::Float x) const { block.v[v] = x; }
  Block<L>& block;
};

template <class L>
CAUSEWAY_LANES void Rotate(typename L::Plane signs, Block<L>& x) {
  Hadamard<L>(x, FlipFirst<L>{x, signs}, NormLast<L>{x});
}

// Calls emit(v, value) as soon as vector v is done.
template <class L, class Emit>
CAUSEWAY_LANES void Unrotate(typename L::Plane signs, Block<L>& x, Emit emit) {
  Hadamard<L>(x, LanesFirst<L>{x}, FlipLast<L, Emit>{x, signs, L::Set(kRotationNorm), emit});
}
template <class L>
CAUSEWAY_LANES void Unrotate(typename L::Plane signs, Block<L>& x) {
  Unrotate<L>(signs, x, IntoBlock<L>{x});
}

// Values of equal magnitude: their sums are small integers times the scale, which has 8 bits, so every stage is exact
// and the scale may wait until the last. The first three stages of integers are looked up.
template <class L>
struct SumsFirst {
  CAUSEWAY_LANES void operator()(int v) const {
    x.v[v] = L::SumsOfSigns(codes, v);
    StageOfLanes<L, 8>(x.v[v]);
  }
  Block<L>& x;
  typename L::Plane codes;
};

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

  // Decode and Unrotate in one. Not for a scale of 0, whose sums would have other zeros.
  template <class Emit>
  CAUSEWAY_LANES static void DecodeRotated(float scale, const uint8_t* codes, typename L::Plane signs,
                                           Emit emit) requires requires(typename L::Plane plane) {
    L::SumsOfSigns(plane, 0);
  }
  {
    Block<L> x;
    Hadamard<L>(x, SumsFirst<L>{x, L::LoadPlane(codes)},
                FlipLast<L, Emit>{x, signs, L::Set(scale * kRotationNorm), emit});
  }
};

}  // namespace causeway::codecs::simd
