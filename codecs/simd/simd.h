// Loops over blocks in the instruction sets of x86-64, byte for byte and bit for bit those of the reference
// (codecs/block_format.h). Call only those that the processor supports: codecs/codec.h decides. Pure, thread-safe.
#pragma once

#include "codecs/block_format.h"

namespace causeway::codecs::simd {

// Null where there is no such version: topk's family, onebit_adam_sign, and every codec in a build for another
// processor.
BlockLoops Avx2Loops(core::CodecId id);    // AVX2 and FMA
BlockLoops Avx512Loops(core::CodecId id);  // AVX-512 F, BW, DQ and VL, and FMA

}  // namespace causeway::codecs::simd
