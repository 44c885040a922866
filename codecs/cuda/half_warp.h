// 16 lanes as 16 threads of a GPU, half a warp: a vector is one register in each of them (codecs/simd/lanes.h).
//
//   warp   |thread 0 … 15: block b|thread 16 … 31: block b + 1|        sums end in shuffles, bits in ballots
//
// Every function must be called by all threads of the warp together. For .cu files, compiled with --fmad=false, so that
// the only fused multiply-adds are the explicit ones.
#pragma once

#include <cstdint>

#include "codecs/simd/lanes.h"
#include "codecs/simd/rotated_kernels.h"

namespace causeway::codecs::simd {

struct HalfWarp {
  using Float = float;
  using Int = uint32_t;
  using Mask = bool;
  struct Plane {
    uint64_t words[4];
  };

  CAUSEWAY_LANES static int Lane() { return static_cast<int>(threadIdx.x % kLanes); }

  CAUSEWAY_LANES static Float Set(float x) { return x; }
  CAUSEWAY_LANES static Int SetInt(uint32_t x) { return x; }
  CAUSEWAY_LANES static Float Table(const float (&x)[kLanes]) { return x[Lane()]; }

  CAUSEWAY_LANES static Float Load(const float* from) { return from[Lane()]; }
  CAUSEWAY_LANES static void Store(float* to, Float x) { to[Lane()] = x; }
  CAUSEWAY_LANES static void Stream(float* to, Float x) { to[Lane()] = x; }
  CAUSEWAY_LANES static Int LoadInt(const uint8_t* from) { return LoadAs<uint32_t>(from); }
  CAUSEWAY_LANES static void StoreInt(uint8_t* to, Int x) { StoreAs<uint32_t>(to, x); }
  CAUSEWAY_LANES static Int LoadLow16(const uint8_t* from) { return LoadAs<uint16_t>(from); }
  CAUSEWAY_LANES static void StoreLow16(uint8_t* to, Int x) { StoreAs<uint16_t>(to, x); }
  CAUSEWAY_LANES static Float LoadSigned8(const uint8_t* from) { return LoadAs<int8_t>(from); }
  CAUSEWAY_LANES static void StoreLow8(uint8_t* to, Int x) { StoreAs<uint8_t>(to, x); }
  CAUSEWAY_LANES static void Store16(uint8_t* to, uint32_t x) {
    if (Lane() == 0) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(x);
  }

  CAUSEWAY_LANES static Float Add(Float a, Float b) { return a + b; }
  CAUSEWAY_LANES static Float Sub(Float a, Float b) { return a - b; }
  CAUSEWAY_LANES static Float Mul(Float a, Float b) { return a * b; }
  CAUSEWAY_LANES static Float Fma(Float a, Float b, Float c) { return __fmaf_rn(a, b, c); }
  CAUSEWAY_LANES static Float Abs(Float x) { return FloatOf(BitsOf(x) & kMagnitudeBits); }
  CAUSEWAY_LANES static Float WithSignOf(Float magnitude, Float sign) {
    return FloatOf(BitsOf(magnitude) | (BitsOf(sign) & kSignBit));
  }

  CAUSEWAY_LANES static Int Bits(Float x) { return BitsOf(x); }
  CAUSEWAY_LANES static Float FromBits(Int x) { return FloatOf(x); }
  CAUSEWAY_LANES static Int AddInt(Int a, Int b) { return a + b; }
  CAUSEWAY_LANES static Int SubInt(Int a, Int b) { return a - b; }
  CAUSEWAY_LANES static Int And(Int a, Int b) { return a & b; }
  CAUSEWAY_LANES static Int Or(Int a, Int b) { return a | b; }
  CAUSEWAY_LANES static Int OrAnd(Int a, Int b, Int c) { return a | (b & c); }
  CAUSEWAY_LANES static Int MinInt(Int a, Int b) { return a < b ? a : b; }
  CAUSEWAY_LANES static Int MaxInt(Int a, Int b) { return a < b ? b : a; }
  template <int kBits>
  CAUSEWAY_LANES static Int ShiftLeft(Int x) {
    return x << kBits;
  }
  template <int kBits>
  CAUSEWAY_LANES static Int ShiftRight(Int x) {
    return x >> kBits;
  }

  template <int kDistance>
  CAUSEWAY_LANES static Float Exchange(Float x) {
    return __shfl_xor_sync(kAllThreads, x, kDistance, kLanes);
  }

  CAUSEWAY_LANES static Float LargerMagnitude(Float a, Float b) { return a < Abs(b) ? Abs(b) : a; }
  static constexpr uint32_t kBinBits = 0;
  CAUSEWAY_LANES static Int Bin(Float x, float per_unit, int last) {
    const float bin = x * per_unit;
    return static_cast<Int>(bin < static_cast<float>(last) ? static_cast<int>(bin) : last);
  }

  CAUSEWAY_LANES static Mask AtLeast(Float a, Float b) { return a >= b; }
  CAUSEWAY_LANES static Float Choose(Mask mask, Float a, Float b) { return mask ? a : b; }
  CAUSEWAY_LANES static Int IfInt(Mask mask, Int a) { return mask ? a : 0; }
  CAUSEWAY_LANES static Int AddIf(Mask mask, Int a, Int b) { return mask ? a + b : a; }

  CAUSEWAY_LANES static Float Lookup(Float table, Int i) {
    return __shfl_sync(kAllThreads, table, static_cast<int>(i % kLanes), kLanes);
  }
  CAUSEWAY_LANES static Float Lookup8(Float table, Int i) {
    return __shfl_sync(kAllThreads, table, static_cast<int>(i % 8), kLanes);
  }
  CAUSEWAY_LANES static Float LookupSigned(Float table, Int i) { return Lookup(table, i); }

  // A sum of two does not depend on their order, so that all threads get the bits that lane 0 gets.
  CAUSEWAY_LANES static float Sum(Float x) {
    x += Exchange<8>(x);
    x += Exchange<4>(x);
    x += Exchange<2>(x);
    return x + Exchange<1>(x);
  }
  CAUSEWAY_LANES static uint32_t Largest(Int x) {
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      x = MaxInt(x, __shfl_xor_sync(kAllThreads, x, distance, kLanes));
    }
    return x;
  }
  CAUSEWAY_LANES static float Sqrt(float x) { return __fsqrt_rn(x); }

  CAUSEWAY_LANES static Mask Negative(Float x) { return (BitsOf(x) & kSignBit) != 0; }
  CAUSEWAY_LANES static void StoreMasks(Mask m0, Mask m1, Mask m2, Mask m3, uint8_t* to) {
    const uint64_t bits = BitsOfLanes(m0) | BitsOfLanes(m1) << 16 | BitsOfLanes(m2) << 32 | BitsOfLanes(m3) << 48;
    if (Lane() == 0) *reinterpret_cast<uint64_t*>(to) = bits;
  }

  CAUSEWAY_LANES static Plane LoadPlane(const uint8_t* bits) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(bits);
    return {{words[0], words[1], words[2], words[3]}};
  }
  CAUSEWAY_LANES static Plane PlaneOf(const uint64_t (&words)[4]) { return {{words[0], words[1], words[2], words[3]}}; }
  CAUSEWAY_LANES static bool BitOf(const Plane& plane, int v) {
    return ((plane.words[v / 4] >> (kLanes * (v % 4) + Lane())) & 1) != 0;
  }
  CAUSEWAY_LANES static Float FlipSigns(Float x, const Plane& plane, int v) {
    return FloatOf(BitsOf(x) ^ (BitOf(plane, v) ? kSignBit : 0));
  }
  CAUSEWAY_LANES static Float Select(const Plane& plane, int v, Float if_set, Float if_clear) {
    return BitOf(plane, v) ? if_set : if_clear;
  }

 private:
  static constexpr unsigned kAllThreads = 0xffffffffu;

  template <typename T>
  CAUSEWAY_LANES static T LoadAs(const uint8_t* from) {
    return reinterpret_cast<const T*>(from)[Lane()];
  }
  template <typename T>
  CAUSEWAY_LANES static void StoreAs(uint8_t* to, uint32_t x) {
    reinterpret_cast<T*>(to)[Lane()] = static_cast<T>(x);
  }
  // The 16 bits of this half of the warp.
  CAUSEWAY_LANES static uint64_t BitsOfLanes(Mask mask) {
    return (__ballot_sync(kAllThreads, mask) >> (threadIdx.x / kLanes % 2 * kLanes)) & 0xffffu;
  }
};

// A select by the thread's own number, where a CPU multiplies by a table of signs.
template <int kDistance>
CAUSEWAY_LANES void StageOfThreads(float& x) {
  const float other = HalfWarp::Exchange<kDistance>(x);
  x = (HalfWarp::Lane() & kDistance) != 0 ? other - x : x + other;
}
template <>
CAUSEWAY_LANES void StageOfLanes<HalfWarp, 1>(float& x) {
  StageOfThreads<1>(x);
}
template <>
CAUSEWAY_LANES void StageOfLanes<HalfWarp, 2>(float& x) {
  StageOfThreads<2>(x);
}
template <>
CAUSEWAY_LANES void StageOfLanes<HalfWarp, 4>(float& x) {
  StageOfThreads<4>(x);
}
template <>
CAUSEWAY_LANES void StageOfLanes<HalfWarp, 8>(float& x) {
  StageOfThreads<8>(x);
}

}  // namespace causeway::codecs::simd
