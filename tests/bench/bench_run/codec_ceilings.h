// The simplest work that moves as much memory as a codec does, against which codecs are measured
// (tests/bench/bench_run/codec_speed.h).
//
//   add     12 B/value   a ← a + b          as an encode with its residual in place
//   read     4 B/value   Σ a                as an encode alone
//   fill     4 B/value   a ← 1, around the caches   as a decode
//   scale    8 B/value   a ← a · c          as a decode that adds
//
// Each uses the order of walking and the prefetch distance that were fastest for it: the same means that the codecs
// have.
// Pointers are aligned to 64 bytes, counts are of whole blocks. Thread-safe, as far as the memory is.
#pragma once

#include <cstdint>

namespace causeway::codecs::simd {

struct Ceilings {
  void (*add)(float* a, const float* b, int64_t count) = nullptr;
  float (*read)(const float* a, int64_t count) = nullptr;
  void (*fill)(float* a, int64_t count) = nullptr;
  void (*scale)(float* a, int64_t count) = nullptr;
};

// Null in a build for another processor.
Ceilings Avx2Ceilings();
Ceilings Avx512Ceilings();

}  // namespace causeway::codecs::simd
