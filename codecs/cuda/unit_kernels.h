// The work of one CTA on one unit: 16 blocks, half a warp each.
//
//   values ─► d in registers, 16 a thread ─► kernel (codecs/simd) ─► shared memory ─► whole lines, by all threads
//
// Device code alone, without the toolkit's headers, so that a test may run it on threads of a CPU as well.
#pragma once

#include <cstdint>

#include "codecs/codec.h"
#include "codecs/simd/integer_kernels.h"
#include "codecs/simd/lanes.h"
#include "codecs/simd/lloyd_max_kernels.h"
#include "codecs/simd/rotated_kernels.h"

// 16 lanes as 16 threads of a GPU, half a warp: a vector is one register in each of them (codecs/simd/lanes.h).
//
//   warp   |thread 0 … 15: block b|thread 16 … 31: block b + 1|        sums end in shuffles, bits in ballots
//
// REQUIRES, of every function: all threads of the warp call it together. For .cu files, compiled with --fmad=false, so
// that the only fused multiply-adds are the explicit ones.
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

// Selects by the thread's own number, where a CPU multiplies by a table of signs.
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

namespace causeway::codecs::cuda {

using simd::kBlock;
using simd::kLanes;
using simd::kVectors;
using Lanes = simd::HalfWarp;
using Values = simd::Block<Lanes>;

inline constexpr int kUnitBlocks = 16;
inline constexpr int kThreads = kUnitBlocks * kLanes;  // one CTA a unit, half a warp a block
inline constexpr int kLineBytes = 64;
inline constexpr int kScaleBytes = 2;  // bytes of a block's scale, at most

// The arguments of a launch. Device code reads no std::optional, so the values of optionals are stored beside them.
struct EncodeTask {
  EncodeJob job;
  int64_t blocks;
  bool rotate;
  Rotation rotation;
  bool whole_blocks;  // the codec rotates, so that padding is not zero
  bool in_domain;     // the input has whole blocks, too
  unsigned long long* bad_block;
};

struct DecodeTask {
  DecodeJob job;
  int64_t blocks;
  bool rotate;
  Rotation rotation;
  bool whole_blocks;  // the output has whole blocks
  bool add;
  float weight;
};

CAUSEWAY_LANES int64_t BlockOfThread() { return static_cast<int64_t>(blockIdx.x) * kUnitBlocks + threadIdx.x / kLanes; }

// The number of values in the block: 256, fewer in the last one, 0 beyond it.
CAUSEWAY_LANES int ValuesIn(int64_t block, int64_t count) {
  const int64_t left = count - block * kBlock;
  return left <= 0 ? 0 : left < kBlock ? static_cast<int>(left) : kBlock;
}

CAUSEWAY_LANES int IndexOf(int v) { return kLanes * v + Lanes::Lane(); }

CAUSEWAY_LANES Values LoadBlock(const float* values, int64_t block, int valid) {
  Values x;
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) x.v[v] = IndexOf(v) < valid ? values[block * kBlock + IndexOf(v)] : 0.0f;
  return x;
}

CAUSEWAY_LANES Values LoadInput(const EncodeTask& task, int64_t block, int valid, int kept) {
  Values d = LoadBlock(task.job.values, block, task.in_domain ? kept : valid);
  if (task.job.subtract != nullptr) {
    const Values other = LoadBlock(task.job.subtract, block, task.in_domain ? kept : valid);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) d.v[v] -= other.v[v];
  }
  if (task.rotate) {
    uint64_t words[4];
    simd::SignWords(task.rotation.seed, task.rotation.first_block + block, words);
    simd::Rotate<Lanes>(Lanes::PlaneOf(words), d);
  }
  if (task.job.residual != nullptr) {
    const Values e = LoadBlock(task.job.residual, block, kept);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) d.v[v] = Lanes::Fma(task.job.beta, e.v[v], d.v[v]);
  }
  return d;
}

CAUSEWAY_LANES void Saturate(Values& d) {
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t magnitude = Lanes::MinInt(Lanes::Bits(Lanes::Abs(d.v[v])), simd::kMaxMagnitudeBits - 1);
    d.v[v] = Lanes::WithSignOf(Lanes::FromBits(magnitude), d.v[v]);
  }
}

// Writes the residual of the values that are kept.
struct KeepResidual {
  float* to;
  int kept;
  CAUSEWAY_LANES void operator()(int v, float d, float decoded) const {
    if (to != nullptr && IndexOf(v) < kept) to[IndexOf(v)] = d - decoded;
  }
};

// Copies the CTA's output to its destination, a piece a thread. Both ends are aligned to pieces.
template <class Piece = uint4>
CAUSEWAY_LANES void CopyLines(const uint8_t* from, uint8_t* to, int64_t bytes) {
  constexpr int64_t kPiece = sizeof(Piece);
  for (int64_t at = threadIdx.x * kPiece; at + kPiece <= bytes; at += kThreads * kPiece) {
    *reinterpret_cast<Piece*>(to + at) = *reinterpret_cast<const Piece*>(from + at);
  }
  const int64_t rest = bytes / kPiece * kPiece;
  for (int64_t at = rest + threadIdx.x; at < bytes; at += kThreads) to[at] = from[at];
}

template <class K>
__global__ void __launch_bounds__(kThreads) EncodeUnits(const EncodeTask task) {
  __shared__ __align__(kLineBytes) uint8_t codes[kUnitBlocks * K::kCodeBytes];
  __shared__ __align__(kLineBytes) uint8_t scales[kUnitBlocks * kScaleBytes];
  const int64_t block = BlockOfThread();
  const int in_unit = threadIdx.x / kLanes;
  const int valid = ValuesIn(block, task.job.count);
  const int kept = task.whole_blocks && valid > 0 ? kBlock : valid;
  Values d = LoadInput(task, block, valid, kept);
  const bool in_range = simd::LargestMagnitude<Lanes>(d) < simd::kMaxMagnitudeBits;
  if (!in_range && !task.job.saturate && Lanes::Lane() == 0) {
    atomicMin(task.bad_block, static_cast<unsigned long long>(block));
  }
  if (!in_range) Saturate(d);  // useless if refused, but harmless to the other half of the warp
  const float inverse_count = task.whole_blocks ? 1.0f / kBlock : 1.0f / static_cast<float>(valid);
  float* residual = task.job.next_residual == nullptr ? nullptr : task.job.next_residual + block * kBlock;
  uint8_t* codes_of_block = codes + in_unit * K::kCodeBytes;
  typename K::State state;
  K::Summarize(d, state);
  K::Normalize(d, state);
  K::ChooseScale(d, state, {inverse_count, task.job.gain}, scales + in_unit * K::kScaleBytes, codes_of_block);
  K::Encode(d, state, codes_of_block, KeepResidual{residual, kept});
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kUnitBlocks;
  const int64_t blocks = min(static_cast<int64_t>(kUnitBlocks), task.blocks - first);
  CopyLines(codes, task.job.codes + first * K::kCodeBytes, blocks * K::kCodeBytes);
  CopyLines(scales, task.job.scales + first * K::kScaleBytes, blocks * K::kScaleBytes);
}

struct IntoBlock {
  Values& block;
  CAUSEWAY_LANES void operator()(int v, float x) const { block.v[v] = x; }
};

template <class K>
__global__ void __launch_bounds__(kThreads) DecodeUnits(const DecodeTask task) {
  __shared__ __align__(kLineBytes) uint8_t codes[kUnitBlocks * K::kCodeBytes];
  __shared__ __align__(kLineBytes) uint8_t scales[kUnitBlocks * kScaleBytes];
  const int64_t block = BlockOfThread();
  const int in_unit = threadIdx.x / kLanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kUnitBlocks;
  const int64_t blocks = min(static_cast<int64_t>(kUnitBlocks), task.blocks - first);
  CopyLines(task.job.codes + first * K::kCodeBytes, codes, blocks * K::kCodeBytes);
  CopyLines(task.job.scales + first * K::kScaleBytes, scales, blocks * K::kScaleBytes);
  __syncthreads();
  Values x;
  K::Decode(scales + in_unit * K::kScaleBytes, codes + in_unit * K::kCodeBytes, IntoBlock{x});
  if (task.rotate) {
    uint64_t words[4];
    simd::SignWords(task.rotation.seed, task.rotation.first_block + block, words);
    simd::Unrotate<Lanes>(Lanes::PlaneOf(words), x);
  }
  const int valid = ValuesIn(block, task.job.count);
  const int written = task.whole_blocks && valid > 0 ? kBlock : valid;
  float* values = task.job.values + block * kBlock;
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    if (IndexOf(v) >= written) continue;
    float& value = values[IndexOf(v)];
    value = task.add ? Lanes::Fma(task.weight, x.v[v], value) : x.v[v];
  }
}

}  // namespace causeway::codecs::cuda
