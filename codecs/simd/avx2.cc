#include "codecs/simd/simd.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "codecs/simd/lanes_avx2.h"
#include "codecs/simd/walk.h"

namespace causeway::codecs::simd {
BlockLoops Avx2Loops(core::CodecId id) { return Loops<Avx2>(id); }
}  // namespace causeway::codecs::simd

#else  // not x86-64

namespace causeway::codecs::simd {
BlockLoops Avx2Loops(core::CodecId) { return {}; }
}  // namespace causeway::codecs::simd

#endif
