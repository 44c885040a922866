// bfloat16: the upper 16 bits of a float32.
//
//   float32 ─► ToBfloat16: to nearest, ties to even ─► 16 bits ─► FromBfloat16 ─► the float32 that they are
//
// With __builtin_bit_cast, since std::bit_cast is a function of the host's.
#pragma once

#include <cstdint>

#include "core/anywhere.h"

namespace causeway::core {

// Rounds the lowest kDropped bits away, to nearest, ties to even. What lies beyond the largest number becomes infinite,
// as IEEE 754 rounds; NaN stays NaN, though rounding could carry it to infinity.
template <int kDropped>
CAUSEWAY_ANYWHERE float RoundBits(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  constexpr uint32_t kMask = (1u << kDropped) - 1;
  const uint32_t rounded = (bits + (kMask >> 1) + ((bits >> kDropped) & 1)) & ~kMask;
  return __builtin_bit_cast(float, value == value ? rounded : bits | 0x00400000u);
}

CAUSEWAY_ANYWHERE uint16_t ToBfloat16(float value) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, RoundBits<16>(value)) >> 16);
}

CAUSEWAY_ANYWHERE float FromBfloat16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

}  // namespace causeway::core
