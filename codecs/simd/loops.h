// The table of a target: the kernel of each codec. For avx2.cc and avx512.cc.
#pragma once

#include "codecs/simd/integer_kernels.h"
#include "codecs/simd/lloyd_max_kernels.h"
#include "codecs/simd/rotated_kernels.h"
#include "codecs/simd/walk.h"

namespace causeway::codecs::simd {

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
    default: return {};  // not made of blocks
  }
}

}  // namespace causeway::codecs::simd
