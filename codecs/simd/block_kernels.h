// The code that the kernels of all codecs share (lanes.h has the vectors that they are written in, docs/wire_format.md
// the values that they compute).
//
//   d ─► Summarize ─► Normalize ─► InRange? ─► ChooseScale ─► Encode ─► codes
//          │             │                        └─► scale     └────► emit(v, d, decoded): residuals are made of them
//          └─ State ─────┴─ what needs all 256 values before the first can be encoded
//   scale, codes ─► Decode ─► emit(v, decoded)
//
// A kernel is a class of static functions, K<L>:
//
//   kScaleBytes, kCodeBytes          bytes of a block's scale and codes
//   kTogether                        blocks that go through the steps side by side, so that one's sums and quotients,
//                                    which take long and occupy little, pass while the other's vectors are computed
//   State                            what one block keeps between its steps
//   Summarize(d, state), Normalize(d, state)
//   InRange(state)                   true only if all |d| < 2^100; false also where that is merely not certain
//   ChooseScale(d, state, constants, scale, codes)   may write the codes, too
//   Encode(d, state, codes, emit)
//   Decode(scale, codes, emit)
#pragma once

#include <cstdint>

#include "codecs/simd/lanes.h"

namespace causeway::codecs::simd {

inline constexpr uint32_t kMaxMagnitudeBits = (127u + 100u) << 23;  // bits of core::kMaxMagnitude
inline constexpr uint32_t kMinScaleBits = (127u - 100u) << 23;      // bits of core::kMinScale
inline constexpr int kMaxExponent = 100;
inline constexpr int kMaxRotatedExponent = 94;  // exponent of kMaxRotatedMagnitude

// Constants of a run that some codecs' scales depend on (EncodeRun).
struct ScaleConstants {
  float inverse_count;
  float gain;
};

// The scale nearest to `wanted` (≥ 0) below 2^kLimitExponent, or 0 where it would be below core::kMinScale; stored in 2
// bytes and returned. The same as codecs/scale.h.
template <class L, int kLimitExponent>
CAUSEWAY_LANES float StoreScale(float wanted, uint8_t* scale) {
  constexpr uint32_t kLargest = ((127u + kLimitExponent) << 7) - 1;
  const uint32_t bits = BitsOf(wanted);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t below_limit = nearest < kLargest ? nearest : kLargest;
  const uint32_t stored = below_limit < (kMinScaleBits >> 16) ? 0 : below_limit;
  L::Store16(scale, stored);
  return FloatOf(stored << 16);
}

CAUSEWAY_LANES float LoadScale(const uint8_t* scale) {
  return FloatOf(static_cast<uint32_t>(scale[0]) << 16 | static_cast<uint32_t>(scale[1]) << 24);
}

// The largest magnitude as bits, which are ordered as magnitudes are; NaN is above all of them.
template <class L>
CAUSEWAY_LANES uint32_t LargestMagnitude(const Block<L>& d) {
  typename L::Int even = L::Bits(L::Abs(d.v[0])), odd = L::Bits(L::Abs(d.v[1]));
  CAUSEWAY_UNROLL
  for (int v = 2; v < kVectors; v += 2) {
    even = L::MaxInt(even, L::Bits(L::Abs(d.v[v])));
    odd = L::MaxInt(odd, L::Bits(L::Abs(d.v[v + 1])));
  }
  return L::Largest(L::MaxInt(even, odd));
}

// The first step of most kernels: the largest magnitude. Steps that some kernels omit are empty here.
template <class L>
struct LargestFirst {
  static constexpr int kTogether = 1;
  struct State {
    uint32_t largest;
    float scale;
  };
  CAUSEWAY_LANES static void Summarize(const Block<L>& d, State& state) { state.largest = LargestMagnitude<L>(d); }
  CAUSEWAY_LANES static void Normalize(const Block<L>&, State&) {}
  CAUSEWAY_LANES static bool InRange(const State& state) { return state.largest < kMaxMagnitudeBits; }
  CAUSEWAY_LANES static void ChooseScale(const Block<L>&, State& state, ScaleConstants, uint8_t* scale, uint8_t*) {
    state.scale = StoreScale<L, kMaxExponent>(FloatOf(state.largest), scale);
  }
};

// float32 and bfloat16 have no scale.
template <class L>
struct Unscaled : LargestFirst<L> {
  static constexpr int64_t kScaleBytes = 0;
  CAUSEWAY_LANES static void ChooseScale(const Block<L>&, typename LargestFirst<L>::State&, ScaleConstants, uint8_t*,
                                         uint8_t*) {}
};

// 256 nibbles on their way to two lines of 64 bytes: dword l, nibble v of a line is value 16 v + l. Added from the last
// vector of a line to its first, each time after a shift by a nibble.
inline constexpr int kLineVectors = 8;
inline constexpr int kLineBytes = 64;

// ── float32, bfloat16: no scales ─────────────────────────────────────────────────────────────────────────────────────

template <class L>
struct Float32Kernel : Unscaled<L> {
  static constexpr int64_t kCodeBytes = 1024;

  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const typename LargestFirst<L>::State&, uint8_t* codes,
                                    Emit emit) {
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      L::StoreInt(codes + 64 * v, L::Bits(d.v[v]));
      emit(v, d.v[v], d.v[v]);
    }
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t*, const uint8_t* codes, Emit emit) {
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) emit(v, L::FromBits(L::LoadInt(codes + 64 * v)));
  }
};

template <class L>
struct Bfloat16Kernel : Unscaled<L> {
  static constexpr int64_t kCodeBytes = 512;

  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const typename LargestFirst<L>::State&, uint8_t* codes,
                                    Emit emit) {
    constexpr uint32_t kLargest = (kMaxMagnitudeBits >> 16) - 1;
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const typename L::Int bits = L::Bits(L::Abs(d.v[v]));
      const typename L::Int odd = L::And(L::template ShiftRight<16>(bits), L::SetInt(1));
      const typename L::Int up = L::AddInt(L::AddInt(bits, L::SetInt(0x7fff)), odd);
      const typename L::Int magnitude = L::MinInt(L::template ShiftRight<16>(up), L::SetInt(kLargest));
      const typename L::Float decoded = L::WithSignOf(L::FromBits(L::template ShiftLeft<16>(magnitude)), d.v[v]);
      L::StoreLow16(codes + 32 * v, L::template ShiftRight<16>(L::Bits(decoded)));
      emit(v, d.v[v], decoded);
    }
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t*, const uint8_t* codes, Emit emit) {
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      emit(v, L::FromBits(L::template ShiftLeft<16>(L::LoadLow16(codes + 32 * v))));
    }
  }
};

}  // namespace causeway::codecs::simd
