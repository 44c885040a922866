// The vectors in which the block kernels are written: 16 lanes each, lane l of vector v being value 16 v + l of a
// block.
//
//   block    |v0: 0 … 15|v1: 16 … 31| … |v15: 240 … 255|        Block<L> = 16 × L::Float
//
//   L = Avx512: a vector is one register         Avx2: two registers of eight
//   L = 16 threads of a GPU: a vector is one register in each of them; Sum and Largest end in shuffles, bits in ballots
//
// A kernel is a template over L, and every function of it is CAUSEWAY_LANES, so that one source text serves all.
// Kernels use only that text: no intrinsics, no std:: functions (the linker could pick a copy that was compiled for
// another processor), no order in which memory is walked (walk.h).
//
// L has the types Float (16 × float32), Int (16 × uint32) and Mask (16 × bool), and these static functions:
//
//   Set(float), SetInt(uint32_t), Table(const float (&)[16])   one value in all lanes; value l in lane l
//   Load, Store, Stream (float*)                               16 values; Stream bypasses the caches
//   LoadInt, StoreInt (uint8_t*)                               64 bytes, dword l in lane l
//   LoadLow16, StoreLow16, LoadSigned8, StoreLow8 (uint8_t*)   32 or 16 bytes, the low bits of each lane
//   Store16(uint8_t*, uint32_t)                                2 bytes, once
//   Add, Sub, Mul, Fma(a, b, c) = a · b + c, Abs, WithSignOf(magnitude, sign)
//   Bits(Float), FromBits(Int), AddInt, SubInt, And, Or, OrAnd(a, b, c) = a | (b & c), MinInt, MaxInt (unsigned)
//   ShiftLeft<n>, ShiftRight<n>
//   Exchange<k>(x)                    lane l gets lane l xor k
//   LargerMagnitude(a, b)             the larger of a ≥ 0 and |b|, where they are numbers
//   Bin(x, per_unit, last)            the integer part of x · per_unit, at most `last`, added to the constant kBinBits
//   AtLeast(a, b)                     a ≥ b
//   Choose(mask, a, b)                mask ? a : b
//   AddIf(mask, a, b)                 mask ? a + b : a, and IfInt(mask, a) = mask ? a : 0
//   Lookup(table, i)                  entry i mod 16; Lookup8: i mod 8, of the first 8
//   LookupSigned(table, i)            as Lookup, for a table whose second 8 are the first, negated
//   Sum(x), Largest(Int)              lane l adds lane l + 8, 4, 2, 1; the largest. Both the same in all threads
//   Negative(x)                       sign bits as a Mask
//   StoreMasks(m0, m1, m2, m3, to)    64 bits, LSB-first
//   Plane                             256 bits: LoadPlane(uint8_t*), PlaneOf(words)
//   FlipSigns(x, plane, v), Select(plane, v, if_set, if_clear)
//   Sqrt(float)
//
// and, where they are of use:
//
//   kVectorsInRegisters               4, if a whole block does not fit
//   SumsOfSigns(plane, v)             stages 1, 2 and 4 of Hadamard's transform of values ±1, whose signs these are
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define CAUSEWAY_LANES __device__ __forceinline__
#else
#define CAUSEWAY_LANES inline __attribute__((always_inline))
#endif

// Unrolls a loop over the vectors of a block: arrays of vectors become registers only if their indices are constants.
// Sanitizers check every access of what is unrolled, which takes compilers minutes, so their builds leave it rolled.
#if defined(CAUSEWAY_NO_UNROLL)
#define CAUSEWAY_UNROLL
#elif defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define CAUSEWAY_UNROLL _Pragma("GCC unroll 16")
#else
#define CAUSEWAY_UNROLL _Pragma("unroll")
#endif

namespace causeway::codecs::simd {

inline constexpr int kLanes = 16;
inline constexpr int kVectors = 16;  // vectors of a block
inline constexpr int kBlock = kLanes * kVectors;

template <class L>
struct Block {
  typename L::Float v[kVectors];
};

constexpr CAUSEWAY_LANES uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
constexpr CAUSEWAY_LANES float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kSignBit = 0x80000000u;
inline constexpr uint32_t kMagnitudeBits = 0x7fffffffu;

}  // namespace causeway::codecs::simd
