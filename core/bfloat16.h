// bfloat16: the upper 16 bits of a float32.
//
//   float32 ─► ToBfloat16: to nearest, ties to even ─► 16 bits ─► FromBfloat16 ─► the float32 of that value
//   float32 ─► RoundStochastically: to one of its two neighbors, more likely the nearer ─► still a float32
//
// Uses __builtin_bit_cast, since std::bit_cast is a host function.
#pragma once

#include <cstdint>

#include "core/anywhere.h"

namespace causeway::core {

// Rounds the lowest kDropped bits away, to nearest, ties to even. A value beyond the largest number becomes infinite,
// as in IEEE 754; NaN stays NaN, although rounding its bits could give infinity.
template <int kDropped>
CAUSEWAY_ANYWHERE float RoundBits(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  constexpr uint32_t kMask = (1u << kDropped) - 1;
  const uint32_t rounded = (bits + (kMask >> 1) + ((bits >> kDropped) & 1)) & ~kMask;
  return __builtin_bit_cast(float, value == value ? rounded : bits | 0x00400000u);
}

// All bits of the result depend on all of `bits` (the finalizer of MurmurHash3). A single product is not enough: when
// its upper bits were used for rounding, a model learned measurably worse.
CAUSEWAY_ANYWHERE uint32_t HashBits(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x85ebca6bu;
  bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
  return bits ^ bits >> 16;
}

// Stochastic rounding keeps small moves of a bfloat16: rounding to nearest loses every move of less than half the
// distance to the next number. The draw is a hash of the value, so that the same value gives the same bits on every
// machine. NaN stays NaN. Source: arXiv 1502.02551 section 3.
CAUSEWAY_ANYWHERE float RoundStochastically(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + (HashBits(bits) >> 16)) & 0xffff0000u;
  return __builtin_bit_cast(float, value == value ? rounded : bits);
}

CAUSEWAY_ANYWHERE uint16_t ToBfloat16(float value) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, RoundBits<16>(value)) >> 16);
}

CAUSEWAY_ANYWHERE float FromBfloat16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

}  // namespace causeway::core
