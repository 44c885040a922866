// 16 lanes as one register of AVX-512 (F, BW, DQ, VL). Only for avx512.cc: see lanes.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "codecs/simd/byte_tables.h"
#include "codecs/simd/lanes.h"

namespace causeway::codecs::simd {

struct Avx512 {
  using Float = __m512;
  using Int = __m512i;
  using Mask = __mmask16;
  struct Plane {
    const uint8_t* bits;
  };

  CAUSEWAY_LANES static Float Set(float x) { return _mm512_set1_ps(x); }
  CAUSEWAY_LANES static Int SetInt(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  CAUSEWAY_LANES static Float Table(const float (&x)[kLanes]) { return _mm512_loadu_ps(x); }

  CAUSEWAY_LANES static Float Load(const float* from) { return _mm512_loadu_ps(from); }
  CAUSEWAY_LANES static void Store(float* to, Float x) { _mm512_storeu_ps(to, x); }
  CAUSEWAY_LANES static void Stream(float* to, Float x) { _mm512_stream_ps(to, x); }
  CAUSEWAY_LANES static Int LoadInt(const uint8_t* from) { return _mm512_loadu_si512(from); }
  CAUSEWAY_LANES static void StoreInt(uint8_t* to, Int x) { _mm512_storeu_si512(to, x); }
  CAUSEWAY_LANES static Int LoadLow16(const uint8_t* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  CAUSEWAY_LANES static void StoreLow16(uint8_t* to, Int x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
  }
  CAUSEWAY_LANES static Float LoadSigned8(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  CAUSEWAY_LANES static void StoreLow8(uint8_t* to, Int x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
  }
  CAUSEWAY_LANES static void Store16(uint8_t* to, uint32_t x) {
    const uint16_t low = static_cast<uint16_t>(x);
    __builtin_memcpy(to, &low, sizeof(low));
  }

  CAUSEWAY_LANES static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  CAUSEWAY_LANES static Float Sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  CAUSEWAY_LANES static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  CAUSEWAY_LANES static Float Fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  CAUSEWAY_LANES static Float Abs(Float x) { return _mm512_abs_ps(x); }
  CAUSEWAY_LANES static Float WithSignOf(Float magnitude, Float sign) {
    return FromBits(OrAnd(Bits(magnitude), Bits(sign), SetInt(kSignBit)));
  }

  CAUSEWAY_LANES static Int Bits(Float x) { return _mm512_castps_si512(x); }
  CAUSEWAY_LANES static Float FromBits(Int x) { return _mm512_castsi512_ps(x); }
  CAUSEWAY_LANES static Int AddInt(Int a, Int b) { return _mm512_add_epi32(a, b); }
  CAUSEWAY_LANES static Int SubInt(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  CAUSEWAY_LANES static Int And(Int a, Int b) { return _mm512_and_si512(a, b); }
  CAUSEWAY_LANES static Int Or(Int a, Int b) { return _mm512_or_si512(a, b); }
  CAUSEWAY_LANES static Int OrAnd(Int a, Int b, Int c) { return _mm512_ternarylogic_epi32(a, b, c, 0xf8); }
  CAUSEWAY_LANES static Int MinInt(Int a, Int b) { return _mm512_min_epu32(a, b); }
  CAUSEWAY_LANES static Int MaxInt(Int a, Int b) { return _mm512_max_epu32(a, b); }
  template <int kBits>
  CAUSEWAY_LANES static Int ShiftLeft(Int x) {
    return _mm512_slli_epi32(x, kBits);
  }
  template <int kBits>
  CAUSEWAY_LANES static Int ShiftRight(Int x) {
    return _mm512_srli_epi32(x, kBits);
  }

  template <int kDistance>
  CAUSEWAY_LANES static Float Exchange(Float x) {
    if constexpr (kDistance == 1) return _mm512_permute_ps(x, 0b10'11'00'01);
    if constexpr (kDistance == 2) return _mm512_permute_ps(x, 0b01'00'11'10);
    if constexpr (kDistance == 4) return _mm512_shuffle_f32x4(x, x, 0b10'11'00'01);
    if constexpr (kDistance == 8) return _mm512_shuffle_f32x4(x, x, 0b01'00'11'10);
  }

  CAUSEWAY_LANES static Float LargerMagnitude(Float a, Float b) {
    constexpr int kAbsoluteMax = 0b10'11;  // with a clear sign bit
    return _mm512_range_ps(a, b, kAbsoluteMax);
  }
  static constexpr uint32_t kBinBits = BitsOf(0x1p23f);  // beside the bin: from here on a float's last bit is a one
  CAUSEWAY_LANES static Int Bin(Float x, float per_unit, float last) {
    const Float sum = _mm512_fmadd_round_ps(x, Set(per_unit), Set(0x1p23f), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    return Bits(_mm512_min_ps(sum, Set(0x1p23f + last)));
  }

  CAUSEWAY_LANES static Mask AtLeast(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  CAUSEWAY_LANES static Float Choose(Mask mask, Float a, Float b) { return _mm512_mask_blend_ps(mask, b, a); }
  CAUSEWAY_LANES static Int IfInt(Mask mask, Int a) { return _mm512_maskz_mov_epi32(mask, a); }
  CAUSEWAY_LANES static Int AddIf(Mask mask, Int a, Int b) { return _mm512_mask_add_epi32(a, mask, a, b); }

  CAUSEWAY_LANES static Float Lookup(Float table, Int i) { return _mm512_permutexvar_ps(i, table); }
  CAUSEWAY_LANES static Float Lookup8(Float table, Int i) { return Lookup(table, i); }
  CAUSEWAY_LANES static Float LookupSigned(Float table, Int i) { return Lookup(table, i); }

  CAUSEWAY_LANES static float Sum(Float x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  CAUSEWAY_LANES static uint32_t Largest(Int x) {
    const __m256i eight = _mm256_max_epu32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 1))));
  }
  CAUSEWAY_LANES static float Sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  CAUSEWAY_LANES static Mask Negative(Float x) { return _mm512_movepi32_mask(Bits(x)); }
  CAUSEWAY_LANES static void StoreMasks(Mask m0, Mask m1, Mask m2, Mask m3, uint8_t* to) {
    const __mmask32 low = _mm512_kunpackw(m1, m0), high = _mm512_kunpackw(m3, m2);
    const __mmask64 bits = _mm512_kunpackd(high, low);
    __builtin_memcpy(to, &bits, sizeof(bits));  // `to` may be at any address
  }

  CAUSEWAY_LANES static Plane LoadPlane(const uint8_t* bits) { return {bits}; }
  CAUSEWAY_LANES static Plane PlaneOf(const uint64_t (&words)[4]) { return {reinterpret_cast<const uint8_t*>(words)}; }
  CAUSEWAY_LANES static Mask MaskOf(Plane plane, int v) {
    uint16_t bits;
    __builtin_memcpy(&bits, plane.bits + 2 * v, sizeof(bits));
    return bits;
  }
  CAUSEWAY_LANES static Float FlipSigns(Float x, Plane plane, int v) {
    return _mm512_mask_xor_ps(x, MaskOf(plane, v), x, Set(-0.0f));
  }
  CAUSEWAY_LANES static Float SumsOfSigns(Plane plane, int v) {
    const Float low = _mm512_castps256_ps512(_mm256_load_ps(kSumsOfBytes.lanes[plane.bits[2 * v]]));
    return _mm512_insertf32x8(low, _mm256_load_ps(kSumsOfBytes.lanes[plane.bits[2 * v + 1]]), 1);
  }
  CAUSEWAY_LANES static Float Select(Plane plane, int v, Float if_set, Float if_clear) {
    return _mm512_mask_blend_ps(MaskOf(plane, v), if_clear, if_set);
  }
};

}  // namespace causeway::codecs::simd
