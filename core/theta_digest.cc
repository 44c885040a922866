#include "core/theta_digest.h"

#include "core/random.h"
#include "core/xxh3.h"

namespace causeway::core {

uint64_t ThetaSeed(std::string_view tensor) { return Xxh3(tensor.data(), tensor.size()); }

uint64_t ThetaDigest(uint64_t seed, int64_t first, std::span<const float> values) {
  uint64_t sum = 0;
  uint64_t place = seed + (static_cast<uint64_t>(first) << 32);  // wraps around: of 2³² values, still one each
  for (const float value : values) {
    sum += SplitMix64(place + __builtin_bit_cast(uint32_t, value));
    place += uint64_t{1} << 32;
  }
  return sum;
}

}  // namespace causeway::core
