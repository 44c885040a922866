#include "codecs/simd/simd.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "codecs/simd/lanes_avx512.h"
#include "codecs/simd/walk.h"

namespace causeway::codecs::simd {
BlockLoops Avx512Loops(core::CodecId id) { return Loops<Avx512>(id); }
}  // namespace causeway::codecs::simd

#else  // not x86-64

namespace causeway::codecs::simd {
BlockLoops Avx512Loops(core::CodecId) { return {}; }
}  // namespace causeway::codecs::simd

#endif
