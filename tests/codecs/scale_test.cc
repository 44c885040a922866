#include "codecs/scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/bfloat16.h"

namespace causeway::codecs {
namespace {

TEST(Scale, Bfloat16BelowTheLimitHasTheBitsOfCore) {
  for (const float limit : {core::kMaxMagnitude, 1.0f, 0x1p-120f}) {
    for (uint32_t upper = 0; upper < 0x10000; ++upper) {
      for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const auto value = std::bit_cast<float>(upper << 16 | lower);
        if (!std::isfinite(value)) continue;
        const uint16_t nearest = core::ToBfloat16(value);
        const uint16_t largest = core::ToBfloat16(std::copysign(limit * (1 - 0x1p-8f), value));
        const bool below = std::fabs(core::FromBfloat16(nearest)) < limit;
        ASSERT_EQ(ToBfloat16(value, limit), below ? nearest : largest) << value << " below " << limit;
      }
    }
  }
}

}  // namespace
}  // namespace causeway::codecs
