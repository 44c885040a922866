// int8, int4 and e3m0: the largest magnitude of the block sets the scale.
//
// Integers: the reference clamps scaled values to ±L (127 or 7). That never changes a code: bf16 rounds the largest
// magnitude down by at most one part in 255, so |x| · (L / s) stays below L + 0.5 and rounds to L.
#pragma once

#include "codecs/simd/block_kernels.h"

namespace causeway::codecs::simd {

// Adding kRounder leaves no bit for a fraction, so the sum is rounded to nearest even and its low bits are the integer.
inline constexpr float kRounder = 0x1.8p23f;

template <class L>
struct Int8Kernel : LargestFirst<L> {
  static constexpr int64_t kScaleBytes = 2;
  static constexpr int64_t kCodeBytes = 256;
  static constexpr float kLevels = 127;

  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const typename LargestFirst<L>::State& state, uint8_t* codes,
                                    Emit emit) {
    const typename L::Float inverse = L::Set(state.scale == 0 ? 0.0f : kLevels / state.scale);
    const typename L::Float step = L::Set(state.scale / kLevels);
    const typename L::Float rounder = L::Set(kRounder);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const typename L::Float rounded = L::Add(L::Mul(d.v[v], inverse), rounder);
      L::StoreLow8(codes + kLanes * v, L::Bits(rounded));
      emit(v, d.v[v], L::Mul(L::Sub(rounded, rounder), step));
    }
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t* scale, const uint8_t* codes, Emit emit) {
    const typename L::Float step = L::Set(LoadScale(scale) / kLevels);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) emit(v, L::Mul(L::LoadSigned8(codes + kLanes * v), step));
  }
};

template <class L>
struct Int4Kernel : LargestFirst<L> {
  static constexpr int64_t kScaleBytes = 2;
  static constexpr int64_t kCodeBytes = 128;
  static constexpr float kLevels = 7;

  // q + 8 is stored. With 8 in the rounder it results from the sum, below bits that are always the same.
  static constexpr float kBiasedRounder = kRounder + 8;

  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const typename LargestFirst<L>::State& state, uint8_t* codes,
                                    Emit emit) {
    const typename L::Float inverse = L::Set(state.scale == 0 ? 0.0f : kLevels / state.scale);
    const typename L::Float step = L::Set(state.scale / kLevels);
    const typename L::Float rounder = L::Set(kBiasedRounder);
    // The upper bits of all eight sums of a line, where its shifts leave them: subtracted at the end.
    constexpr uint32_t kUpper = __builtin_bit_cast(uint32_t, kRounder);
    constexpr uint32_t kUpperOfLine = kUpper + (kUpper << 4) + (kUpper << 8);
    static_assert(static_cast<uint32_t>(kUpper << 12) == 0);
    CAUSEWAY_UNROLL
    for (int line = 0; line < 2; ++line) {
      typename L::Int words = L::SetInt(0);
      CAUSEWAY_UNROLL
      for (int i = kLineVectors - 1; i >= 0; --i) {
        const int v = kLineVectors * line + i;
        const typename L::Float rounded = L::Add(L::Mul(d.v[v], inverse), rounder);
        words = L::AddInt(L::template ShiftLeft<4>(words), L::Bits(rounded));
        emit(v, d.v[v], L::Mul(L::Sub(rounded, rounder), step));
      }
      L::StoreInt(codes + kLineBytes * line, L::SubInt(words, L::SetInt(kUpperOfLine)));
    }
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t* scale, const uint8_t* codes, Emit emit) {
    constexpr float kIntegers[kLanes] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const typename L::Float table = L::Mul(L::Table(kIntegers), L::Set(LoadScale(scale) / kLevels));
    CAUSEWAY_UNROLL
    for (int line = 0; line < 2; ++line) {
      typename L::Int words = L::LoadInt(codes + kLineBytes * line);
      CAUSEWAY_UNROLL
      for (int i = 0; i < kLineVectors; ++i) {
        emit(kLineVectors * line + i, L::Lookup(table, words));
        words = L::template ShiftRight<4>(words);
      }
    }
  }
};

template <class L>
struct E3m0Kernel : LargestFirst<L> {
  static constexpr int64_t kScaleBytes = 2;
  static constexpr int64_t kCodeBytes = 128;

  // The level of each nibble.
  CAUSEWAY_LANES static typename L::Float Levels(float scale) {
    constexpr float kLevels[kLanes] = {0.0f,  0x1p-6f,  0x1p-5f,  0x1p-4f,  0x1p-3f,  0x1p-2f,  0x1p-1f,  1.0f,
                                       -0.0f, -0x1p-6f, -0x1p-5f, -0x1p-4f, -0x1p-3f, -0x1p-2f, -0x1p-1f, -1.0f};
    return L::Mul(L::Table(kLevels), L::Set(scale));
  }

  // t = |x| / s is at most 1 and a rounding, so no exponent is above the top level's.
  template <class Emit>
  CAUSEWAY_LANES static void Encode(const Block<L>& d, const typename LargestFirst<L>::State& state, uint8_t* codes,
                                    Emit emit) {
    const typename L::Float inverse = L::Set(state.scale == 0 ? 0.0f : 1 / state.scale);
    const typename L::Float levels = Levels(state.scale);
    constexpr uint32_t kBelowFirst = 127 - 7;  // exponent of 2^-7, where code 1 begins
    CAUSEWAY_UNROLL
    for (int line = 0; line < 2; ++line) {
      typename L::Int words = L::SetInt(0);
      CAUSEWAY_UNROLL
      for (int i = kLineVectors - 1; i >= 0; --i) {
        const int v = kLineVectors * line + i;
        const typename L::Float t = L::Mul(L::Abs(d.v[v]), inverse);
        const typename L::Int nearest = L::template ShiftRight<23>(L::AddInt(L::Bits(t), L::SetInt(1u << 22)));
        const typename L::Int k = L::SubInt(L::MaxInt(nearest, L::SetInt(kBelowFirst + 1)), L::SetInt(kBelowFirst));
        const typename L::Int exponent = L::IfInt(L::AtLeast(t, L::Set(0x1p-7f)), k);
        const typename L::Int sign = L::And(L::template ShiftRight<28>(L::Bits(d.v[v])), L::SetInt(8));
        const typename L::Int nibble = L::Or(exponent, sign);
        words = L::Or(L::template ShiftLeft<4>(words), nibble);
        emit(v, d.v[v], L::LookupSigned(levels, nibble));
      }
      L::StoreInt(codes + kLineBytes * line, words);
    }
  }

  template <class Emit>
  CAUSEWAY_LANES static void Decode(const uint8_t* scale, const uint8_t* codes, Emit emit) {
    const typename L::Float levels = Levels(LoadScale(scale));
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
