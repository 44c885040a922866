// bfloat16, and the bfloat16 number that scales the codes of a block.
//
// bfloat16 rather than fp16, in which the scales of tiny deltas would underflow, and rather than a power of two, which
// costs 11 to 28 % of mean squared error (docs/wire_format.md). Thread-safe.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "core/bfloat16.h"
#include "core/limits.h"

namespace causeway::codecs {

inline constexpr int64_t kScaleBytes = 2;

// Round to nearest even, and towards zero where the nearest is not below `limit`, a power of two: a value that would
// round up to it becomes the largest bfloat16 below, so that everything encoded also decodes below it. `value` is
// finite. Below the limit the bits are core::ToBfloat16's, whose test for NaN would slow the loop over a block.
inline uint16_t ToBfloat16(float value, float limit = core::kMaxMagnitude) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) & 0x80000000u;
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
  const uint32_t rounded = (magnitude + 0x7fffu + ((magnitude >> 16) & 1u)) >> 16;
  const uint32_t largest = (std::bit_cast<uint32_t>(limit) >> 16) - 1;
  return static_cast<uint16_t>((sign >> 16) | (rounded < largest ? rounded : largest));
}

// Stores the scale nearest to `wanted` (≥ 0) and returns it: 0 where it would be below core::kMinScale, since a
// quotient by it could overflow. Such a block is sent as zeros.
float StoreScale(float wanted, uint8_t* scale, float limit = core::kMaxMagnitude);

inline float LoadScale(const uint8_t* scale) {
  uint16_t bits;
  std::memcpy(&bits, scale, sizeof(bits));
  return core::FromBfloat16(bits);
}

// INVALID_ARGUMENT unless StoreScale could have written the scale: +0, or core::kMinScale to below `limit`.
absl::Status ValidateScale(float scale, float limit = core::kMaxMagnitude);

}  // namespace causeway::codecs
