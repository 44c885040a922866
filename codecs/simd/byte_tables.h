// Tables of the values that eight sign bits represent, indexed by their byte: a load instead of several instructions. 8
// KB each, which stay in the first-level cache while in use. Lane l is bit l of the byte.
#pragma once

#include <cstdint>

namespace causeway::codecs::simd {

inline constexpr int kByteLanes = 8;

// The sign bit where the byte's bit is set.
struct SignsOfBytes {
  constexpr SignsOfBytes() : lanes() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      for (uint32_t l = 0; l < kByteLanes; ++l) lanes[byte][l] = ((byte >> l) & 1) << 31;
    }
  }
  alignas(32) uint32_t lanes[256][kByteLanes];
};
inline constexpr SignsOfBytes kSignsOfBytes;

// Hadamard's stages of distance 1, 2 and 4 of eight values that are −1 where the byte's bit is set, else 1.
struct SumsOfBytes {
  constexpr SumsOfBytes() : lanes() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      int values[kByteLanes];
      for (uint32_t l = 0; l < kByteLanes; ++l) values[l] = ((byte >> l) & 1) != 0 ? -1 : 1;
      for (int distance = 1; distance < kByteLanes; distance *= 2) {
        for (int l = 0; l < kByteLanes; ++l) {
          if ((l & distance) != 0) continue;
          const int a = values[l], b = values[l + distance];
          values[l] = a + b;
          values[l + distance] = a - b;
        }
      }
      for (int l = 0; l < kByteLanes; ++l) lanes[byte][l] = static_cast<float>(values[l]);
    }
  }
  alignas(32) float lanes[256][kByteLanes];
};
inline constexpr SumsOfBytes kSumsOfBytes;

}  // namespace causeway::codecs::simd
