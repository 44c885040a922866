// A pass that rounds float32 parameters to the bfloat16 copy, past the caches, after other code has changed them. An
// update makes its copy in its own pass (offload/adamw.h). Thread-safe on disjoint arrays.
#pragma once

#include <cstdint>
#include <cstring>

// Copies that bypass the caches, for data that is written once and read by a device: no line is read before it is
// written.

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace causeway::offload {

// `from` is aligned to 16 bytes. Other threads see the written data after FinishStreamCopies.
inline void StreamCopy(const uint16_t* from, uint16_t* to, int64_t count) {
  int64_t done = 0;
#ifdef __SSE2__
  constexpr int64_t kVector = sizeof(__m128i) / sizeof(uint16_t);
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0) {
    for (; done + kVector <= count; done += kVector) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + done)));
    }
  }
#endif
  std::memcpy(to + done, from + done, static_cast<size_t>(count - done) * sizeof(uint16_t));
}

inline void FinishStreamCopies() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace causeway::offload

namespace causeway::offload {

// Rounds each value as core::ToBfloat16 does.
void RoundCopy(const float* from, uint16_t* to, int64_t count);

}  // namespace causeway::offload
