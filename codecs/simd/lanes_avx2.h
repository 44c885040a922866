// 16 lanes as two registers of AVX2 and FMA, lanes 0 to 7 and 8 to 15. Only for avx2.cc: see lanes.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "codecs/simd/byte_tables.h"
#include "codecs/simd/lanes.h"

namespace causeway::codecs::simd {

struct Avx2 {
  struct Float {
    __m256 lo, hi;
  };
  struct Int {
    __m256i lo, hi;
  };
  using Mask = Float;  // all bits of a lane, or none
  struct Plane {
    const uint8_t* bits;
  };
  static constexpr int kVectorsInRegisters = 4;  // leaves room for the arithmetic on them

  CAUSEWAY_LANES static Float Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  CAUSEWAY_LANES static Int SetInt(uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
  }
  CAUSEWAY_LANES static Float Table(const float (&x)[kLanes]) { return Load(x); }

  CAUSEWAY_LANES static Float Load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  CAUSEWAY_LANES static void Store(float* to, Float x) {
    _mm256_storeu_ps(to, x.lo);
    _mm256_storeu_ps(to + 8, x.hi);
  }
  CAUSEWAY_LANES static void Stream(float* to, Float x) {
    _mm256_stream_ps(to, x.lo);
    _mm256_stream_ps(to + 8, x.hi);
  }
  CAUSEWAY_LANES static Int LoadInt(const uint8_t* from) { return {LoadEight(from), LoadEight(from + 32)}; }
  CAUSEWAY_LANES static void StoreInt(uint8_t* to, Int x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), x.hi);
  }
  CAUSEWAY_LANES static Int LoadLow16(const uint8_t* from) {
    return {_mm256_cvtepu16_epi32(LoadFour(from)), _mm256_cvtepu16_epi32(LoadFour(from + 16))};
  }
  CAUSEWAY_LANES static void StoreLow16(uint8_t* to, Int x) {  // x is below 2^16, or packing would saturate
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.lo, x.hi), 0b11'01'10'00);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
  }
  CAUSEWAY_LANES static Float LoadSigned8(const uint8_t* from) {
    const __m128i lo = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m128i hi = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi))};
  }
  CAUSEWAY_LANES static void StoreLow8(uint8_t* to, Int x) {
    // Moves the low byte of each dword to the front of its half, then the dwords of the four halves together.
    const __m256i low_bytes = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                               0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i pairs =
        _mm256_unpacklo_epi32(_mm256_shuffle_epi8(x.lo, low_bytes), _mm256_shuffle_epi8(x.hi, low_bytes));
    const __m128i mixed = _mm_unpacklo_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), mixed);
  }
  CAUSEWAY_LANES static void Store16(uint8_t* to, uint32_t x) {
    const uint16_t low = static_cast<uint16_t>(x);
    __builtin_memcpy(to, &low, sizeof(low));
  }

  CAUSEWAY_LANES static Float Add(Float a, Float b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  CAUSEWAY_LANES static Float Sub(Float a, Float b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  CAUSEWAY_LANES static Float Mul(Float a, Float b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  CAUSEWAY_LANES static Float Fma(Float a, Float b, Float c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  CAUSEWAY_LANES static Float Abs(Float x) { return FromBits(And(Bits(x), SetInt(kMagnitudeBits))); }
  CAUSEWAY_LANES static Float WithSignOf(Float magnitude, Float sign) {
    return FromBits(OrAnd(Bits(magnitude), Bits(sign), SetInt(kSignBit)));
  }

  CAUSEWAY_LANES static Int Bits(Float x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
  CAUSEWAY_LANES static Float FromBits(Int x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
  CAUSEWAY_LANES static Int AddInt(Int a, Int b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  CAUSEWAY_LANES static Int SubInt(Int a, Int b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }
  CAUSEWAY_LANES static Int And(Int a, Int b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
  CAUSEWAY_LANES static Int Or(Int a, Int b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
  CAUSEWAY_LANES static Int OrAnd(Int a, Int b, Int c) { return Or(a, And(b, c)); }
  CAUSEWAY_LANES static Int MinInt(Int a, Int b) {
    return {_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)};
  }
  CAUSEWAY_LANES static Int MaxInt(Int a, Int b) {
    return {_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)};
  }
  template <int kBits>
  CAUSEWAY_LANES static Int ShiftLeft(Int x) {
    return {_mm256_slli_epi32(x.lo, kBits), _mm256_slli_epi32(x.hi, kBits)};
  }
  template <int kBits>
  CAUSEWAY_LANES static Int ShiftRight(Int x) {
    return {_mm256_srli_epi32(x.lo, kBits), _mm256_srli_epi32(x.hi, kBits)};
  }

  template <int kDistance>
  CAUSEWAY_LANES static Float Exchange(Float x) {
    if constexpr (kDistance == 1)
      return {_mm256_permute_ps(x.lo, 0b10'11'00'01), _mm256_permute_ps(x.hi, 0b10'11'00'01)};
    if constexpr (kDistance == 2)
      return {_mm256_permute_ps(x.lo, 0b01'00'11'10), _mm256_permute_ps(x.hi, 0b01'00'11'10)};
    if constexpr (kDistance == 4) return {_mm256_permute2f128_ps(x.lo, x.lo, 1), _mm256_permute2f128_ps(x.hi, x.hi, 1)};
    if constexpr (kDistance == 8) return {x.hi, x.lo};
  }

  CAUSEWAY_LANES static Float LargerMagnitude(Float a, Float b) {
    const Float magnitude = Abs(b);
    return {_mm256_max_ps(a.lo, magnitude.lo), _mm256_max_ps(a.hi, magnitude.hi)};
  }
  static constexpr uint32_t kBinBits = 0;
  CAUSEWAY_LANES static Int Bin(Float x, float per_unit, float last) {
    const Float scaled = Mul(x, Set(per_unit)), end = Set(last);
    return {_mm256_cvttps_epi32(_mm256_min_ps(scaled.lo, end.lo)),
            _mm256_cvttps_epi32(_mm256_min_ps(scaled.hi, end.hi))};
  }

  CAUSEWAY_LANES static Mask AtLeast(Float a, Float b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
  }
  CAUSEWAY_LANES static Float Choose(Mask mask, Float a, Float b) {
    return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
  }
  CAUSEWAY_LANES static Int IfInt(Mask mask, Int a) { return And(Bits(mask), a); }
  CAUSEWAY_LANES static Int AddIf(Mask mask, Int a, Int b) { return AddInt(a, IfInt(mask, b)); }

  CAUSEWAY_LANES static Float Lookup8(Float table, Int i) {
    return {_mm256_permutevar8x32_ps(table.lo, i.lo), _mm256_permutevar8x32_ps(table.lo, i.hi)};
  }
  CAUSEWAY_LANES static Float LookupSigned(Float table, Int i) {
    const Float first = Lookup8(table, i);
    const Int sign = And(ShiftLeft<28>(i), SetInt(kSignBit));
    return {_mm256_xor_ps(first.lo, _mm256_castsi256_ps(sign.lo)),
            _mm256_xor_ps(first.hi, _mm256_castsi256_ps(sign.hi))};
  }
  CAUSEWAY_LANES static Float Lookup(Float table, Int i) {
    const Float first = Lookup8(table, i), second = Lookup8({table.hi, table.hi}, i);
    const Float upper = FromBits(ShiftLeft<28>(i));
    return {_mm256_blendv_ps(first.lo, second.lo, upper.lo), _mm256_blendv_ps(first.hi, second.hi, upper.hi)};
  }

  CAUSEWAY_LANES static float Sum(Float x) {
    const __m256 eight = _mm256_add_ps(x.lo, x.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  CAUSEWAY_LANES static uint32_t Largest(Int x) {
    const __m256i eight = _mm256_max_epu32(x.lo, x.hi);
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 1))));
  }
  CAUSEWAY_LANES static float Sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  CAUSEWAY_LANES static Mask Negative(Float x) { return x; }  // StoreMasks uses only the sign bits
  CAUSEWAY_LANES static void StoreMasks(Mask m0, Mask m1, Mask m2, Mask m3, uint8_t* to) {
    Store32(to, PackSigns(m0, m1));
    Store32(to + 4, PackSigns(m2, m3));
  }

  CAUSEWAY_LANES static Plane LoadPlane(const uint8_t* bits) { return {bits}; }
  CAUSEWAY_LANES static Plane PlaneOf(const uint64_t (&words)[4]) { return {reinterpret_cast<const uint8_t*>(words)}; }
  CAUSEWAY_LANES static Float FlipSigns(Float x, Plane plane, int v) {
    return {_mm256_xor_ps(x.lo, SignsOfByte(plane.bits[2 * v])),
            _mm256_xor_ps(x.hi, SignsOfByte(plane.bits[2 * v + 1]))};
  }
  CAUSEWAY_LANES static Float SumsOfSigns(Plane plane, int v) {
    return {_mm256_load_ps(kSumsOfBytes.lanes[plane.bits[2 * v]]),
            _mm256_load_ps(kSumsOfBytes.lanes[plane.bits[2 * v + 1]])};
  }
  CAUSEWAY_LANES static Float Select(Plane plane, int v, Float if_set, Float if_clear) {
    const Float top = FromBits(BitsAtTop(plane, v));
    return {_mm256_blendv_ps(if_clear.lo, if_set.lo, top.lo), _mm256_blendv_ps(if_clear.hi, if_set.hi, top.hi)};
  }

 private:
  CAUSEWAY_LANES static __m256 SignsOfByte(uint8_t byte) {
    return _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(kSignsOfBytes.lanes[byte])));
  }
  CAUSEWAY_LANES static __m256i LoadEight(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  CAUSEWAY_LANES static __m128i LoadFour(const uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  CAUSEWAY_LANES static void Store32(uint8_t* to, int x) { __builtin_memcpy(to, &x, sizeof(x)); }

  // The sign bits of 32 values in order: packing keeps signs, and leaves groups of four in the order 0 2 4 6 1 3 5 7.
  CAUSEWAY_LANES static int PackSigns(Float a, Float b) {
    const __m256i words_a = _mm256_packs_epi32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
    const __m256i words_b = _mm256_packs_epi32(_mm256_castps_si256(b.lo), _mm256_castps_si256(b.hi));
    const __m256i bytes = _mm256_packs_epi16(words_a, words_b);
    return _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }

  // Bit 16 v + l of the plane at the top of lane l, others below.
  CAUSEWAY_LANES static Int BitsAtTop(Plane plane, int v) {
    int two_vectors;
    __builtin_memcpy(&two_vectors, plane.bits + 4 * (v / 2), sizeof(two_vectors));
    const __m256i bits = _mm256_set1_epi32(two_vectors);
    const __m256i down = _mm256_set1_epi32(v % 2 == 0 ? 31 : 15);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i shift = _mm256_sub_epi32(down, lane);
    return {_mm256_sllv_epi32(bits, shift), _mm256_sllv_epi32(bits, _mm256_sub_epi32(shift, _mm256_set1_epi32(8)))};
  }
};

}  // namespace causeway::codecs::simd
