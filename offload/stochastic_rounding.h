// Rounding of float32 to bfloat16 by random bits that are a function of seed and index, so that it repeats itself.
#pragma once

#include <bit>
#include <cstdint>

namespace causeway::offload {

// 32 random bits, a function of seed and index alone (the finalizer of MurmurHash3).
inline uint32_t RoundingBits(uint32_t seed, uint32_t index) {
  uint32_t bits = index * 0x9E3779B1u + seed;
  bits = (bits ^ (bits >> 16)) * 0x85EBCA6Bu;
  bits = (bits ^ (bits >> 13)) * 0xC2B2AE35u;
  return bits ^ (bits >> 16);
}

// x in bfloat16, up with the probability of how near that is: `bits` of 16 are random. A NaN stays one.
inline uint16_t RoundStochastically(float x, uint32_t bits) {
  const auto exact = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((x == x ? exact + bits : exact | 0x00400000u) >> 16);
}

}  // namespace causeway::offload
