// rotated_lm2 and rotated_lm4: Lloyd-Max levels of a unit Gaussian, and the least-squares scale for them.
#pragma once

#include "codecs/simd/block_kernels.h"

namespace causeway::codecs::simd {

// The base of both kernels. z = d · 2^-E, with 2^E at or below the largest magnitude.
template <class L>
struct LloydMax {
  static constexpr int64_t kScaleBytes = 2;
  static constexpr int kTogether = 2;
  struct State {
    uint32_t largest;
    float square;         // Σ z²
    float power;          // 2^E
    float inverse_power;  // 2^-E, or 0 where the block is sent as zeros
    float scale;
    typename L::Float levels[kVectors];  // chosen, with the signs of d
  };

  CAUSEWAY_LANES static void Summarize(const Block<L>& d, State& state) {
    typename L::Float even = L::Abs(d.v[0]), odd = L::Abs(d.v[1]);
    CAUSEWAY_UNROLL
    for (int v = 2; v < kVectors; v += 2) {
      even = L::LargerMagnitude(even, d.v[v]);
      odd = L::LargerMagnitude(odd, d.v[v + 1]);
    }
    state.largest = L::Largest(L::Bits(L::LargerMagnitude(even, odd)));
  }

  CAUSEWAY_LANES static void Normalize(const Block<L>& d, State& state) {
    constexpr uint32_t kOne = 127u << 23;
    const uint32_t power = state.largest & 0x7f800000u;
    state.power = FloatOf(power);
    state.inverse_power = state.largest < kMinScaleBits ? 0.0f : FloatOf(2 * kOne - power);
    typename L::Float square = L::Set(0.0f);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const typename L::Float z = L::Mul(d.v[v], L::Set(state.inverse_power));
      square = L::Fma(z, z, square);
    }
    state.square = L::Sum(square);
  }

  // The largest magnitude may have passed over a NaN; the sum has not. No number's square is beyond 4.
  CAUSEWAY_LANES static bool InRange(const State& state) {
    return state.largest < kMaxMagnitudeBits && state.square <= 4.0f * kBlock;
  }

  CAUSEWAY_LANES static float InverseRms(const State& state) {
    return state.inverse_power == 0 ? 0.0f : 1 / L::Sqrt(state.square * 0x1p-8f);
  }

  // The least-squares scale of the chosen levels c: product = Σ |z| · c, norm = Σ c · c.
  CAUSEWAY_LANES static void StoreLeastSquares(State& state, typename L::Float product, typename L::Float norm,
                                               uint8_t* scale) {
    const float least_squares = L::Sum(product) / L::Sum(norm);
    const float wanted = state.inverse_power == 0 ? 0.0f : least_squares * state.power;
    state.scale = StoreScale<L, kMaxRotatedExponent>(wanted, scale);
  }

  // Once the scale is known, only the residual remains.
  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const State& state, uint8_t*, Emit emit) {
    const typename L::Float scale = L::Set(state.scale);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) emit(v, d.v[v], L::Mul(state.levels[v], scale));
  }
};

template <class L>
struct LloydMax2Kernel : LloydMax<L> {
  using State = typename LloydMax<L>::State;
  static constexpr int64_t kCodeBytes = 64;
  static constexpr int64_t kPlaneBytes = 32;
  static constexpr float kInner = 0.4528f, kOuter = 1.5104f, kThreshold = 0.9816f;

  CAUSEWAY_LANES static void ChooseScale(const Block<L>& d, State& state, ScaleConstants, uint8_t* scale,
                                         uint8_t* codes) {
    const typename L::Float inverse_power = L::Set(state.inverse_power);
    const typename L::Float inverse_rms = L::Set(LloydMax<L>::InverseRms(state));
    const typename L::Float inner = L::Set(kInner), outer = L::Set(kOuter), threshold = L::Set(kThreshold);
    typename L::Float product = L::Set(0.0f), norm = L::Set(0.0f);
    CAUSEWAY_UNROLL
    for (int four = 0; four < kVectors; four += 4) {
      typename L::Mask is_outer[4];
      CAUSEWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const typename L::Float x = d.v[four + i], z = L::Mul(x, inverse_power);
        is_outer[i] = L::AtLeast(L::Mul(L::Abs(z), inverse_rms), threshold);
        const typename L::Float level = L::WithSignOf(L::Choose(is_outer[i], outer, inner), x);
        product = L::Fma(z, level, product);
        norm = L::Fma(level, level, norm);
        state.levels[four + i] = level;
      }
      L::StoreMasks(L::Negative(d.v[four]), L::Negative(d.v[four + 1]), L::Negative(d.v[four + 2]),
                    L::Negative(d.v[four + 3]), codes + 2 * four);
      L::StoreMasks(is_outer[0], is_outer[1], is_outer[2], is_outer[3], codes + kPlaneBytes + 2 * four);
    }
    LloydMax<L>::StoreLeastSquares(state, product, norm, scale);
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t* scale, const uint8_t* codes, Emit emit) {
    const float stored = LoadScale(scale);
    const typename L::Float inner = L::Set(kInner * stored), outer = L::Set(kOuter * stored);
    const typename L::Plane signs = L::LoadPlane(codes), levels = L::LoadPlane(codes + kPlaneBytes);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) emit(v, L::FlipSigns(L::Select(levels, v, outer, inner), signs, v));
  }
};

template <class L>
struct LloydMax4Kernel : LloydMax<L> {
  using State = typename LloydMax<L>::State;
  static constexpr int64_t kCodeBytes = 128;

  // The level of each nibble.
  CAUSEWAY_LANES static typename L::Float Levels() {
    constexpr float kLevels[kLanes] = {0.1284f,  0.3880f,  0.6568f,  0.9423f,  1.2562f,  1.6180f,  2.0690f,  2.7326f,
                                       -0.1284f, -0.3880f, -0.6568f, -0.9423f, -1.2562f, -1.6180f, -2.0690f, -2.7326f};
    return L::Table(kLevels);
  }

  // How many of the seven thresholds t reaches, added to L::kBinBits. Bins of this width hold one threshold each, none
  // of them near an end: a bin's number is how many thresholds lie below it, and one comparison says the rest.
  CAUSEWAY_LANES static typename L::Int CodeOf(typename L::Float t) {
    constexpr float kBinWidth = 0.35f;
    constexpr float kThresholds[kLanes] = {0.2582f, 0.5224f, 0.79955f, 1.09925f, 1.4371f, 1.8435f, 2.4008f, 0x1p100f};
    const typename L::Int bin = L::Bin(t, 1 / kBinWidth, 7);
    return L::AddIf(L::AtLeast(t, L::Lookup8(L::Table(kThresholds), bin)), bin, L::SetInt(1));
  }

  CAUSEWAY_LANES static void ChooseScale(const Block<L>& d, State& state, ScaleConstants, uint8_t* scale,
                                         uint8_t* codes) {
    const typename L::Float inverse_power = L::Set(state.inverse_power);
    const typename L::Float inverse_rms = L::Set(LloydMax<L>::InverseRms(state));
    const typename L::Float levels = Levels();
    // kBinBits of all eight codes of a line, where its shifts leave them: subtracted at the end.
    constexpr uint32_t kBinBits = L::kBinBits;
    constexpr uint32_t kBinBitsOfLine = kBinBits + (kBinBits << 4) + (kBinBits << 8);
    static_assert(static_cast<uint32_t>(kBinBits << 12) == 0);
    typename L::Float product = L::Set(0.0f), norm = L::Set(0.0f);
    typename L::Int words[2] = {L::SetInt(0), L::SetInt(0)};
    typename L::Int nibbles[kVectors];
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const typename L::Float z = L::Mul(d.v[v], inverse_power);
      const typename L::Int code = CodeOf(L::Mul(L::Abs(z), inverse_rms));
      nibbles[v] = L::OrAnd(code, L::template ShiftRight<28>(L::Bits(d.v[v])), L::SetInt(8));
      const typename L::Float level = L::LookupSigned(levels, nibbles[v]);
      product = L::Fma(z, level, product);
      norm = L::Fma(level, level, norm);
      state.levels[v] = level;
    }
    CAUSEWAY_UNROLL
    for (int v = kVectors - 1; v >= 0; --v) {
      words[v / kLineVectors] = L::AddInt(L::template ShiftLeft<4>(words[v / kLineVectors]), nibbles[v]);
    }
    L::StoreInt(codes, L::SubInt(words[0], L::SetInt(kBinBitsOfLine)));
    L::StoreInt(codes + kLineBytes, L::SubInt(words[1], L::SetInt(kBinBitsOfLine)));
    LloydMax<L>::StoreLeastSquares(state, product, norm, scale);
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t* scale, const uint8_t* codes, Emit emit) {
    const typename L::Float levels = L::Mul(Levels(), L::Set(LoadScale(scale)));
    CAUSEWAY_UNROLL
    for (int line = 0; line < 2; ++line) {
      typename L::Int words = L::LoadInt(codes + kLineBytes * line);
      CAUSEWAY_UNROLL
      for (int i = 0; i < kLineVectors; ++i) {
        emit(kLineVectors * line + i, L::LookupSigned(levels, words));
        words = L::template ShiftRight<4>(words);
      }
    }
  }
};

}  // namespace causeway::codecs::simd
