#include "core/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/dtype.h"

namespace causeway::core {
namespace {

// By the definition: of the two bfloat16 around a finite value the nearer one, of two as near the even one. The step
// after the largest one stands for infinity.
uint16_t Nearest(float value) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // towards zero
  const auto worth = [](uint16_t bits) {
    const bool infinite = (bits & 0x7fff) == 0x7f80;
    return infinite ? 0x1p128 : std::fabs(static_cast<double>(FromBfloat16(bits)));
  };
  const double to_below = std::fabs(value) - worth(below), to_above = worth(below + 1) - std::fabs(value);
  return to_below < to_above || (to_below == to_above && below % 2 == 0) ? below : below + 1;
}

TEST(Bfloat16, EachValueBecomesTheNearestAndTiesGoToTheEvenOne) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(value)) ASSERT_EQ(ToBfloat16(value), Nearest(value)) << value;
    }
  }
}

TEST(Bfloat16, InfinityStaysAndNanBecomesAQuietOneOfItsSign) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToBfloat16(kInfinite), 0x7f80);
  EXPECT_EQ(ToBfloat16(-kInfinite), 0xff80);
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_EQ(ToBfloat16(std::bit_cast<float>(nan)), (nan >> 16) | 0x0040);
    EXPECT_EQ(ToBfloat16(std::bit_cast<float>(nan | 0x80000000u)), (nan >> 16) | 0x8040);
  }
}

TEST(Bfloat16, BitsBecomeTheFloatThatTheyAreAndComeBack) {
  EXPECT_EQ(FromBfloat16(0x3f80), 1.0f);
  EXPECT_EQ(FromBfloat16(0x8001), -0x1p-133f);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FromBfloat16(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) ASSERT_EQ(ToBfloat16(value), bits);
  }
}

TEST(Bfloat16, RoundToGivesTheSameBits) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    const auto value = std::bit_cast<float>(upper << 16 | (upper * 0x9e37u & 0xffffu));
    float rounded = 0;
    RoundTo(DType::kBfloat16, {&value, 1}, {&rounded, 1});
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded) >> 16, ToBfloat16(value)) << value;
  }
}

}  // namespace
}  // namespace causeway::core
