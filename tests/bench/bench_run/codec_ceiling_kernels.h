// ceilings.h, over lanes. Only for avx2.cc and avx512.cc.
#pragma once

#include "codecs/simd/walk.h"
#include "tests/bench/bench_run/codec_ceilings.h"

namespace causeway::codecs::simd {

template <class L>
void AddCeiling(float* a, const float* b, int64_t count) {
  const int64_t blocks = count / kBlock;
  const Walk<4> walk(blocks);
  for (int64_t n = 0; n < blocks; ++n) {
    const int64_t at = walk.BlockAt(n) * kBlock, ahead = walk.BlockAt(n + 4 < blocks ? n + 4 : n) * kBlock;
    PrefetchBlock(a + ahead);
    PrefetchBlock(b + ahead);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      L::Store(a + at + kLanes * v, L::Add(L::Load(a + at + kLanes * v), L::Load(b + at + kLanes * v)));
    }
  }
}

template <class L>
float ReadCeiling(const float* a, int64_t count) {
  constexpr int kSums = 8;  // enough for the additions' latency not to show
  const int64_t blocks = count / kBlock;
  const Walk<8> walk(blocks);
  typename L::Float sums[kSums];
  CAUSEWAY_UNROLL
  for (int i = 0; i < kSums; ++i) sums[i] = L::Set(0.0f);
  for (int64_t n = 0; n < blocks; ++n) {
    const float* block = a + walk.BlockAt(n) * kBlock;
    PrefetchBlock(a + walk.BlockAt(n + 4 < blocks ? n + 4 : n) * kBlock);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[v % kSums] = L::Add(sums[v % kSums], L::Load(block + kLanes * v));
  }
  float sum = 0;
  CAUSEWAY_UNROLL
  for (int i = 0; i < kSums; ++i) sum += L::Sum(sums[i]);
  return sum;
}

template <class L>
void FillCeiling(float* a, int64_t count) {
  const int64_t blocks = count / kBlock;
  const Walk<4> walk(blocks);
  const typename L::Float one = L::Set(1.0f);
  for (int64_t n = 0; n < blocks; ++n) {
    float* block = a + walk.BlockAt(n) * kBlock;
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) L::Stream(block + kLanes * v, one);
  }
  _mm_sfence();
}

template <class L>
void ScaleCeiling(float* a, int64_t count) {
  const int64_t blocks = count / kBlock;
  const Walk<4> walk(blocks);
  const typename L::Float factor = L::Set(0.999f);
  for (int64_t n = 0; n < blocks; ++n) {
    float* block = a + walk.BlockAt(n) * kBlock;
    PrefetchBlock(a + walk.BlockAt(n + 4 < blocks ? n + 4 : n) * kBlock);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) L::Store(block + kLanes * v, L::Mul(L::Load(block + kLanes * v), factor));
  }
}

template <class L>
Ceilings CeilingsOf() {
  return {.add = AddCeiling<L>, .read = ReadCeiling<L>, .fill = FillCeiling<L>, .scale = ScaleCeiling<L>};
}

}  // namespace causeway::codecs::simd
