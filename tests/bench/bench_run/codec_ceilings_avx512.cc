#include "tests/bench/bench_run/codec_ceilings.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "codecs/simd/lanes_avx512.h"
#include "tests/bench/bench_run/codec_ceiling_kernels.h"

namespace causeway::codecs::simd {
Ceilings Avx512Ceilings() { return CeilingsOf<Avx512>(); }
}  // namespace causeway::codecs::simd

#else  // not x86-64

namespace causeway::codecs::simd {
Ceilings Avx512Ceilings() { return {}; }
}  // namespace causeway::codecs::simd

#endif
