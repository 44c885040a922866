#include "core/dtype.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace causeway::core {
namespace {

using ::testing::ElementsAre;

std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  std::vector<float> rounded(values.size());
  RoundTo(dtype, values, rounded);
  return rounded;
}

TEST(DType, Bfloat16RoundsToNearestAndTiesToEven) {
  EXPECT_THAT(Rounded(DType::kBfloat16, {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-8f + 0x1p-20f, -0.0f}),
              ElementsAre(1.0f, 1.0f, 1.0f + 0x1p-6f, 1.0f + 0x1p-7f, -0.0f));
}

TEST(DType, Float16RoundsToNearestAlsoBelowItsSmallestNormal) {
  EXPECT_THAT(Rounded(DType::kFloat16,
                      {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 0x1p-24f, 0x1.8p-24f, 0x1p-26f, 65504.0f, 65519.0f}),
              ElementsAre(1.0f, 1.0f + 0x1p-9f, 0x1p-24f, 0x1p-23f, 0.0f, 65504.0f, 65504.0f));
}

TEST(DType, WhatIsBeyondTheLargestBecomesInfiniteAndNanStaysNan) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Rounded(DType::kFloat16, {65520.0f, -1e30f}), ElementsAre(kInfinite, -kInfinite));
  EXPECT_THAT(Rounded(DType::kBfloat16, {3.4e38f, -kInfinite}), ElementsAre(kInfinite, -kInfinite));
  for (DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    EXPECT_TRUE(std::isnan(Rounded(dtype, {std::nanf("")})[0])) << DTypeName(dtype);
  }
}

TEST(DType, NumbersOfATypeStayAsTheyAre) {
  for (DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    std::vector<float> values;
    for (int i = -40; i < 40; ++i) values.push_back(static_cast<float>(i) * 0.37f);
    const std::vector<float> once = Rounded(dtype, values);
    EXPECT_EQ(Rounded(dtype, once), once) << DTypeName(dtype);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("float8"), std::nullopt);
}

TEST(DType, WhatIsStoredLoadsAsItsNearestNumber) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,     -0.0f,     1.0f,      -3.1415927f, 65504.0f,   0x1p-14f, 0x1.8p-16f,
                                     0x1p-24f, -0x1p-24f, 0x1p-133f, kInfinite,   -kInfinite, 1e30f,    0.1f};
  for (DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    std::vector<std::byte> array(values.size() * BytesOf(dtype) + 1);
    std::byte* const unaligned = array.data() + 1;
    Store(dtype, values, unaligned);
    std::vector<float> loaded(values.size());
    Load(dtype, unaligned, loaded);
    EXPECT_EQ(loaded, Rounded(dtype, values)) << DTypeName(dtype);
    EXPECT_TRUE(std::signbit(loaded[1])) << DTypeName(dtype);
  }
}

TEST(DType, EachFloat16IsStoredAsTheBitsThatItWasLoadedFrom) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value = 0;
    Load(DType::kFloat16, &half, std::span(&value, 1));
    if (std::isnan(value)) continue;
    uint16_t stored = 0;
    Store(DType::kFloat16, std::span(&value, 1), &stored);
    ASSERT_EQ(stored, half);
  }
}

}  // namespace
}  // namespace causeway::core
