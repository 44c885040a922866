#include "codecs/simd/ceilings.h"
#include "codecs/simd/simd.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "codecs/simd/ceiling_kernels.h"
#include "codecs/simd/lanes_avx512.h"
#include "codecs/simd/loops.h"

namespace causeway::codecs::simd {
BlockLoops Avx512Loops(core::CodecId id) { return Loops<Avx512>(id); }
Ceilings Avx512Ceilings() { return CeilingsOf<Avx512>(); }
}  // namespace causeway::codecs::simd

#else  // not x86-64

namespace causeway::codecs::simd {
BlockLoops Avx512Loops(core::CodecId) { return {}; }
Ceilings Avx512Ceilings() { return {}; }
}  // namespace causeway::codecs::simd

#endif
