// Runs of blocks on a CPU: the kernels, and the order in which memory is walked. Kernels themselves do not depend on
// it.
//
//   pages   |p0: b0 b1 b2 b3|p1: b4 b5 b6 b7| … |       visited: one block of each page in turn, then the next of each
//
// A linear read is limited by the prefetcher, which follows one stream inside a page of 4 KiB; several pages at a time
// are several streams. Blocks visited a little later are prefetched by instruction as well.
#pragma once

#include <immintrin.h>

#include "codecs/block_format.h"
#include "codecs/simd/block_kernels.h"
#include "codecs/simd/integer_kernels.h"
#include "codecs/simd/lloyd_max_kernels.h"
#include "codecs/simd/rotated_kernels.h"

namespace causeway::codecs::simd {

// How many pages are walked at a time, and how many visits ahead they are fetched: measured (tests/bench/run codecs). With
// a residual in place there are three streams already, and more of them cost more than they gain.
inline constexpr int kEncodePages = 4, kEncodeAhead = 8;
inline constexpr int kFeedbackPages = 1, kFeedbackAhead = 4;
inline constexpr int kAddPages = 1, kAddAhead = 4;
inline constexpr int kDecodePages = 1, kDecodeAhead = 8;

// The block of the n-th visit in a run of `blocks` blocks. Blocks that do not fill a group of pages are visited in
// order.
template <int kPagesAtOnce>
struct Walk {
  static constexpr int64_t kBlocksPerPage = 4;
  static constexpr int64_t kGroup = kPagesAtOnce * kBlocksPerPage;

  explicit CAUSEWAY_LANES Walk(int64_t blocks) : grouped(blocks - blocks % kGroup) {}

  CAUSEWAY_LANES int64_t BlockAt(int64_t n) const {
    if (n >= grouped) return n;
    const int64_t i = n % kGroup, page = i % kPagesAtOnce;
    // Neighbouring visits at different places of their pages: addresses that agree in 12 bits look like one to a load
    // that follows a store.
    return n - i + page * kBlocksPerPage + (i / kPagesAtOnce + page) % kBlocksPerPage;
  }

  int64_t grouped;
};

inline constexpr int64_t kLineOfCache = 64;
template <int64_t kBytes>
CAUSEWAY_LANES void Prefetch(const void* from) {
  CAUSEWAY_UNROLL
  for (int64_t at = 0; at < kBytes; at += kLineOfCache) {
    _mm_prefetch(static_cast<const char*>(from) + at, _MM_HINT_T0);
  }
}
CAUSEWAY_LANES void PrefetchBlock(const float* block) { Prefetch<kBlock * sizeof(float)>(block); }

// Beyond this size, written data does not stay in a cache, and data that is only written need not be read into one.
inline constexpr int64_t kStreamBytes = 4 << 20;
inline constexpr int64_t kAlignment = 64;
CAUSEWAY_LANES bool MayStream(const float* to, int64_t blocks) {
  return blocks * kBlock * static_cast<int64_t>(sizeof(float)) > kStreamBytes &&
         reinterpret_cast<uintptr_t>(to) % kAlignment == 0;
}

// The destination of vectors.
struct Nowhere {
  template <class Float>
  CAUSEWAY_LANES void operator()(int, Float, Float) const {}
};
template <class L>
struct ResidualTo {
  CAUSEWAY_LANES void operator()(int v, typename L::Float d, typename L::Float decoded) const {
    L::Store(to + kLanes * v, L::Sub(d, decoded));
  }
  float* to;
};
template <class L, bool kStream>
struct AssignTo {
  CAUSEWAY_LANES void operator()(int v, typename L::Float x) const {
    kStream ? L::Stream(to + kLanes * v, x) : L::Store(to + kLanes * v, x);
  }
  float* to;
};
template <class L>
struct AddTo {
  CAUSEWAY_LANES void operator()(int v, typename L::Float x) const {
    L::Store(to + kLanes * v, L::Fma(weight, x, L::Load(to + kLanes * v)));
  }
  float* to;
  typename L::Float weight;
};
// d of a block. `ahead` is a block whose input is fetched meanwhile.
template <class L, bool kFeedback, bool kRotate>
CAUSEWAY_LANES Block<L> Input(const EncodeRun& run, int64_t block, int64_t ahead) {
  Block<L> d;
  PrefetchBlock(run.values + ahead * kBlock);
  if constexpr (kFeedback) PrefetchBlock(run.residual + ahead * kBlock);
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    d.v[v] = L::Load(run.values + block * kBlock + kLanes * v);
    if constexpr (kFeedback && !kRotate) {
      d.v[v] = L::Fma(L::Set(run.beta), L::Load(run.residual + block * kBlock + kLanes * v), d.v[v]);
    }
  }
  if constexpr (kRotate) {
    uint64_t words[4];
    SignWords(run.rotation.seed, run.rotation.first_block + block, words);
    Rotate<L>(L::PlaneOf(words), d);
    if constexpr (kFeedback) {
      CAUSEWAY_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        d.v[v] = L::Fma(L::Set(run.beta), L::Load(run.residual + block * kBlock + kLanes * v), d.v[v]);
      }
    }
  }
  return d;
}

// Writes codes and residual of a block, once its scale is chosen.
template <class L, class K, bool kFeedback>
CAUSEWAY_LANES void Finish(const EncodeRun& run, int64_t block, const Block<L>& d, const typename K::State& state) {
  uint8_t* codes = run.codes + block * K::kCodeBytes;
  if constexpr (kFeedback) {
    K::Encode(d, state, codes, ResidualTo<L>{run.next_residual + block * kBlock});
  } else {
    K::Encode(d, state, codes, Nowhere{});
  }
}

template <class L, class K>
CAUSEWAY_LANES void ChooseScale(const EncodeRun& run, int64_t block, const Block<L>& d, typename K::State& state) {
  K::ChooseScale(d, state, {run.inverse_count, run.gain}, run.scales + block * K::kScaleBytes,
                 run.codes + block * K::kCodeBytes);
}

// One block with all checks: values out of range are refused, or clamped. For a block that may be out of range, and for
// those left over when the others were processed together. Not inlined: that would double what the compiler is given.
template <class L, class K, bool kFeedback, bool kRotate>
[[gnu::noinline]] bool EncodeOne(const EncodeRun& run, int64_t block) {
  Block<L> d = Input<L, kFeedback, kRotate>(run, block, block);
  if (!(LargestMagnitude<L>(d) < kMaxMagnitudeBits)) {
    if (!run.saturate) return false;
    for (int v = 0; v < kVectors; ++v) {
      const auto magnitude = L::MinInt(L::Bits(L::Abs(d.v[v])), L::SetInt(kMaxMagnitudeBits - 1));
      d.v[v] = L::WithSignOf(L::FromBits(magnitude), d.v[v]);
    }
  }
  typename K::State state;
  K::Summarize(d, state);
  K::Normalize(d, state);
  ChooseScale<L, K>(run, block, d, state);
  Finish<L, K, kFeedback>(run, block, d, state);
  return true;
}

// Encodes the blocks of kTogether visits.
template <class L, class K, bool kFeedback, bool kRotate>
CAUSEWAY_LANES bool EncodeTogether(const EncodeRun& run, const int64_t (&blocks)[K::kTogether],
                                   const int64_t (&ahead)[K::kTogether]) {
  constexpr int kTogether = K::kTogether;
  Block<L> d[kTogether];
  typename K::State states[kTogether];
  CAUSEWAY_UNROLL
  for (int i = 0; i < kTogether; ++i) d[i] = Input<L, kFeedback, kRotate>(run, blocks[i], ahead[i]);
  CAUSEWAY_UNROLL
  for (int i = 0; i < kTogether; ++i) K::Summarize(d[i], states[i]);
  CAUSEWAY_UNROLL
  for (int i = 0; i < kTogether; ++i) K::Normalize(d[i], states[i]);
  bool in_range = true;
  CAUSEWAY_UNROLL
  for (int i = 0; i < kTogether; ++i) in_range &= K::InRange(states[i]);
  if (__builtin_expect(!in_range, 0)) {
    for (int i = 0; i < kTogether; ++i) {
      if (!EncodeOne<L, K, kFeedback, kRotate>(run, blocks[i])) return false;
    }
    return true;
  }
  CAUSEWAY_UNROLL
  for (int i = 0; i < kTogether; ++i) ChooseScale<L, K>(run, blocks[i], d[i], states[i]);
  CAUSEWAY_UNROLL
  for (int i = 0; i < kTogether; ++i) Finish<L, K, kFeedback>(run, blocks[i], d[i], states[i]);
  return true;
}

template <class L, class K, bool kFeedback, bool kRotate>
bool EncodeWalk(const EncodeRun& run) {
  const Walk<kFeedback ? kFeedbackPages : kEncodePages> walk(run.blocks);
  constexpr int kTogether = K::kTogether, kAhead = kFeedback ? kFeedbackAhead : kEncodeAhead;
  int64_t n = 0;
  for (; n + kTogether <= run.blocks; n += kTogether) {
    int64_t blocks[kTogether], ahead[kTogether];
    CAUSEWAY_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      blocks[i] = walk.BlockAt(n + i);
      ahead[i] = walk.BlockAt(n + i + kAhead < run.blocks ? n + i + kAhead : n + i);
    }
    if (!EncodeTogether<L, K, kFeedback, kRotate>(run, blocks, ahead)) return false;
  }
  for (; n < run.blocks; ++n) {
    if (!EncodeOne<L, K, kFeedback, kRotate>(run, walk.BlockAt(n))) return false;
  }
  return true;
}

template <class L, class K, bool kRotate>
bool EncodeTurned(const EncodeRun& run) {
  return run.residual == nullptr ? EncodeWalk<L, K, false, kRotate>(run) : EncodeWalk<L, K, true, kRotate>(run);
}

template <class L, class K, bool kRotates>
bool Encode(const EncodeRun& run) {
  if constexpr (kRotates) {
    if (run.rotate) return EncodeTurned<L, K, true>(run);
  }
  return EncodeTurned<L, K, false>(run);
}

// Decodes a block and rotates it back.
template <class L, class K, class To>
CAUSEWAY_LANES void DecodeAndUnrotate(const DecodeRun& run, int64_t block, To to) {
  const uint8_t* scale = run.scales + block * K::kScaleBytes;
  const uint8_t* codes = run.codes + block * K::kCodeBytes;
  uint64_t words[4];
  SignWords(run.rotation.seed, run.rotation.first_block + block, words);
  if constexpr (requires { K::DecodeRotated(0.0f, codes, L::PlaneOf(words), to); }) {
    const float level = LoadScale(scale);
    if (__builtin_expect(level != 0, 1)) return K::DecodeRotated(level, codes, L::PlaneOf(words), to);
  }
  Block<L> x;
  K::Decode(scale, codes, IntoBlock<L>{x});
  Unrotate<L>(L::PlaneOf(words), x, to);
}

template <class L, class K, bool kRotate, class To>
CAUSEWAY_LANES void DecodeBlock(const DecodeRun& run, int64_t block, To to) {
  if constexpr (kRotate) {
    DecodeAndUnrotate<L, K>(run, block, to);
  } else {
    K::Decode(run.scales + block * K::kScaleBytes, run.codes + block * K::kCodeBytes, to);
  }
}

template <class L, class K, bool kRotate>
void DecodeAddWalk(const DecodeRun& run) {
  const Walk<kAddPages> walk(run.blocks);
  for (int64_t n = 0; n < run.blocks; ++n) {
    const int64_t block = walk.BlockAt(n);
    const int64_t ahead = walk.BlockAt(n + kAddAhead < run.blocks ? n + kAddAhead : n);
    PrefetchBlock(run.values + ahead * kBlock);
    Prefetch<K::kCodeBytes>(run.codes + ahead * K::kCodeBytes);
    DecodeBlock<L, K, kRotate>(run, block, AddTo<L>{run.values + block * kBlock, L::Set(run.weight)});
  }
}

template <class L, class K, bool kRotate, bool kStream>
void DecodeWalk(const DecodeRun& run) {
  const Walk<kDecodePages> walk(run.blocks);
  for (int64_t n = 0; n < run.blocks; ++n) {
    const int64_t block = walk.BlockAt(n);
    if constexpr (kRotate) {  // busy long enough for the codes' own stream to fall behind
      const int64_t ahead = walk.BlockAt(n + kDecodeAhead < run.blocks ? n + kDecodeAhead : n);
      Prefetch<K::kCodeBytes>(run.codes + ahead * K::kCodeBytes);
    }
    DecodeBlock<L, K, kRotate>(run, block, AssignTo<L, kStream>{run.values + block * kBlock});
  }
  if constexpr (kStream) _mm_sfence();
}

template <class L, class K, bool kRotate>
void DecodeTurned(const DecodeRun& run) {
  if (run.add) return DecodeAddWalk<L, K, kRotate>(run);
  if (MayStream(run.values, run.blocks)) return DecodeWalk<L, K, kRotate, true>(run);
  DecodeWalk<L, K, kRotate, false>(run);
}

template <class L, class K, bool kRotates>
void Decode(const DecodeRun& run) {
  if constexpr (kRotates) {
    if (run.rotate) return DecodeTurned<L, K, true>(run);
  }
  DecodeTurned<L, K, false>(run);
}

// Σ of several sites' blocks, which stays in registers until all are in it.
template <class L>
struct SumIn {
  CAUSEWAY_LANES void operator()(int v, typename L::Float x) const { sum.v[v] = L::Fma(weight, x, sum.v[v]); }
  Block<L>& sum;
  typename L::Float weight;
};

template <class L, class K>
void Sum(const SumRun& run) {
  for (int64_t block = 0; block < run.blocks; ++block) {
    Block<L> sum;
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) sum.v[v] = L::Set(0);
    for (int64_t n = 0; n < run.num_terms; ++n) {
      const DecodeTerm& term = run.terms[n];
      const uint8_t* codes = term.codes + block * K::kCodeBytes;
      Prefetch<K::kCodeBytes>(codes + kAddAhead * K::kCodeBytes);  // a prefetch beyond the end does not fault
      K::Decode(term.scales + block * K::kScaleBytes, codes, SumIn<L>{sum, L::Set(term.weight)});
    }
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) L::Store(run.sum + block * kBlock + kLanes * v, sum.v[v]);
  }
}

// The table of a target: the kernel of each codec. For avx2.cc and avx512.cc.
template <class L, class K, bool kRotates = false>
CAUSEWAY_LANES BlockLoops LoopsOf() {
  return {.encode = Encode<L, K, kRotates>, .decode = Decode<L, K, kRotates>, .sum = Sum<L, K>};
}

template <class L>
BlockLoops Loops(core::CodecId id) {
  using core::CodecId;
  switch (id) {
    case CodecId::kFloat32: return LoopsOf<L, Float32Kernel<L>>();
    case CodecId::kBfloat16: return LoopsOf<L, Bfloat16Kernel<L>>();
    case CodecId::kInt8: return LoopsOf<L, Int8Kernel<L>>();
    case CodecId::kInt4: return LoopsOf<L, Int4Kernel<L>>();
    case CodecId::kE3m0: return LoopsOf<L, E3m0Kernel<L>>();
    case CodecId::kSign: return LoopsOf<L, SignKernel<L, kMaxExponent>>();
    case CodecId::kRotatedSign: return LoopsOf<L, SignKernel<L, kMaxRotatedExponent>, true>();
    case CodecId::kRotatedLm2: return LoopsOf<L, LloydMax2Kernel<L>, true>();
    case CodecId::kRotatedLm4: return LoopsOf<L, LloydMax4Kernel<L>, true>();
    default: return {};  // these codecs are not made of blocks
  }
}

}  // namespace causeway::codecs::simd
