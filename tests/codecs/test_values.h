// Inputs for the codecs' tests: deterministic, without the mathematics library, whose last bits differ between systems.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/codec_id.h"
#include "core/random.h"

namespace causeway::codecs {

// Uniform in [−1, 1).
inline std::vector<float> UniformValues(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(2 * core::UnitInterval(core::HashCombine(seed, i)) - 1);
  }
  return values;
}

inline std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// For TEST_P over all codecs.
inline std::string CodecTestName(core::CodecId codec) { return core::CodecName(codec); }

}  // namespace causeway::codecs
