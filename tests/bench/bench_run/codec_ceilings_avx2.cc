#include "tests/bench/bench_run/codec_ceilings.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "codecs/simd/lanes_avx2.h"
#include "tests/bench/bench_run/codec_ceiling_kernels.h"

namespace causeway::codecs::simd {
Ceilings Avx2Ceilings() { return CeilingsOf<Avx2>(); }
}  // namespace causeway::codecs::simd

#else  // not x86-64

namespace causeway::codecs::simd {
Ceilings Avx2Ceilings() { return {}; }
}  // namespace causeway::codecs::simd

#endif
