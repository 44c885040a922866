#include "core/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/random.h"

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
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(ToBfloat16(value), Nearest(value)) << value;
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

TEST(Bfloat16, StochasticallyTheFurtherOfTheTwoAroundIsTakenAsOftenAsTheValueIsNearIt) {
  constexpr int kValues = 20'000;
  for (const double nearness : {0.02, 0.25, 0.5, 0.9}) {
    int further = 0;
    for (int i = 0; i < kValues; ++i) {
      const uint64_t draw = HashCombine(7, i);
      const auto lower = static_cast<uint32_t>(nearness * 0x10000) + draw % 256;
      const uint32_t bits = (draw >> 32 & 0xbfff0000u) | lower;
      const auto rounded = std::bit_cast<uint32_t>(RoundStochastically(std::bit_cast<float>(bits)));
      ASSERT_TRUE(rounded == bits - lower || rounded == bits - lower + 0x10000) << bits;
      further += rounded > bits ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(further) / kValues, nearness, 0.015);
  }
}

TEST(Bfloat16, StochasticallyTheSameValueGivesTheSameBits) {  // those of tests/python/test_torch_device.py, too
  EXPECT_EQ(RoundStochastically(0.1f), 0.099609375f);
  EXPECT_EQ(RoundStochastically(0.2f), 0.2001953125f);
  EXPECT_EQ(RoundStochastically(0.3f), 0.298828125f);
  EXPECT_EQ(RoundStochastically(-0.7f), -0.69921875f);
  EXPECT_EQ(RoundStochastically(3.14159274f), 3.140625f);
}

TEST(Bfloat16, StochasticallyABfloat16StaysAndNanToo) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    const auto value = std::bit_cast<float>(upper << 16);
    ASSERT_EQ(std::bit_cast<uint32_t>(RoundStochastically(value)), upper << 16);
    const auto beside = std::bit_cast<float>(upper << 16 | 0xffffu);
    ASSERT_EQ(std::isnan(RoundStochastically(beside)), std::isnan(beside));
  }
}

TEST(Bfloat16, BitsBecomeTheFloatThatTheyAreAndComeBack) {
  EXPECT_EQ(FromBfloat16(0x3f80), 1.0f);
  EXPECT_EQ(FromBfloat16(0x8001), -0x1p-133f);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FromBfloat16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(ToBfloat16(value), bits);
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
