// Values at the edges of what codecs take: what they decode to is defined for each, and the same in every version.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/limits.h"
#include "tests/codecs/encoded.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using ::testing::Each;

constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

// No coefficient of a rotated block reaches 2^100 if all values are below this.
float Limit(CodecId id) { return GetCodec(id).rotates() ? kMaxRotatedMagnitude : core::kMaxMagnitude; }

std::vector<float> Repeated(const std::vector<float>& pattern, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = pattern[i % pattern.size()];
  return values;
}

struct Pattern {
  const char* name;
  std::vector<float> values;  // over and over
};

std::vector<Pattern> PatternsFor(CodecId id) {
  const float largest = std::nextafter(Limit(id), 0.0f), min_scale = core::kMinScale;
  const float below_min_scale = std::nextafter(min_scale, 0.0f);
  return {{"+0", {0.0f}},
          {"-0", {-0.0f}},
          {"zeros of both signs", {0.0f, -0.0f, -0.0f}},
          {"denormals", {kDenormal, -kDenormal, 0x1p-127f, -0x1.8p-130f, 0.0f}},
          {"1e-38", {1e-38f}},
          {"-1e-38", {-1e-38f, 1e-38f, -1e-38f}},
          {"the smallest scale", {min_scale, -min_scale}},
          {"below the smallest scale", {below_min_scale, -below_min_scale, below_min_scale}},
          {"four thirds of the smallest scale", {0x1.555556p-100f, -0x1.555556p-100f}},
          {"ones", {1.0f}},
          {"minus ones", {-1.0f}},
          {"ones of both signs", {1.0f, -1.0f, -1.0f, 1.0f, -1.0f}},
          {"halves and ones", {0.5f, 1.0f}},
          {"one and 2^-30", {1.0f, 0x1p-30f, -0x1p-30f}},
          {"largest", {largest}},
          {"largest of both signs", {largest, -largest, -largest}},
          {"largest and smallest", {largest, kDenormal, -largest, -0.0f, min_scale}},
          {"rounded up to a scale", {0x1.017p0f, 0.3f}},
          {"rounded down to a scale", {0x1.008p0f, 0.3f}}};
}

class EdgeValuesOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(EdgeValuesOf, AreEncodedAsSpecified) {
  for (const Pattern& pattern : PatternsFor(GetParam())) {
    for (size_t count : {1, 44, 256, 300, 4096 + 30}) {
      for (float gain : {1.0f, 1.25f}) {
        SCOPED_TRACE(testing::Message() << count << " values: " << pattern.name << ", gain " << gain);
        ExpectAsSpecified(GetParam(), Repeated(pattern.values, count), gain);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EdgeValuesOf, InTheResidualAreEncodedAsSpecified) {
  for (const Pattern& pattern : PatternsFor(GetParam())) {
    for (size_t count : {1, 300, 4096 + 30}) {
      SCOPED_TRACE(testing::Message() << count << " values: " << pattern.name);
      std::vector<float> values = Repeated(pattern.values, count);
      for (float& value : values) value = std::abs(value) < 0x1p90f ? value : -value / 4;  // the sum is in range
      ExpectAsSpecified(GetParam(), values, 1.25f, 0.5f, Repeated(pattern.values, DomainValues(GetParam(), count)));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EdgeValuesOf, OneHugeOutlierIsEncodedAsSpecified) {
  for (size_t count : {1, 300, 4096 + 30}) {
    for (float outlier : {1e20f, -0x1p93f}) {
      std::vector<float> values = UniformValues(count, 5);
      values[count / 2] = outlier;
      SCOPED_TRACE(testing::Message() << count << " values with " << outlier);
      ExpectAsSpecified(GetParam(), values, 1);
      // Whatever becomes of its neighbours, the outlier keeps sign and size.
      const float decoded = RoundTrip(GetParam(), values)[count / 2];
      EXPECT_GT(decoded / outlier, 0);
      EXPECT_LT(decoded / outlier, 1.5f);
    }
  }
}

// Zeros of both signs, denormals, and blocks whose scale would be below 2^-100.
TEST_P(EdgeValuesOf, TinyValuesDecodeToThemselvesOrToZero) {
  const bool keeps = GetParam() == CodecId::kFloat32 || GetParam() == CodecId::kBfloat16;
  for (float tiny : {0.0f, -0.0f, kDenormal, -kDenormal, 1e-38f, -1e-38f, 0x1p-101f}) {
    const std::vector<float> values(300, tiny);
    const float expected = GetParam() == CodecId::kBfloat16 ? NearestBfloat16(tiny) : tiny;
    EXPECT_THAT(RoundTrip(GetParam(), values), Each(keeps ? expected : 0.0f)) << tiny;
  }
}

TEST_P(EdgeValuesOf, LargestValuesDecodeBelowTheLimit) {
  const float largest = std::nextafter(Limit(GetParam()), 0.0f);
  std::vector<float> values(256, largest);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = -largest;
  const Encoded encoded = Encode(GetParam(), values, 1.25f);
  EXPECT_TRUE(GetCodec(GetParam()).Validate(encoded.scales.data(), encoded.codes.data(), 256).ok());
  for (float decoded : Decode(GetParam(), encoded, 256)) EXPECT_LT(std::abs(decoded), core::kMaxMagnitude);
}

// One scale holds them all; after a rotation a block has few different coefficients, and they are no Gaussian's.
TEST_P(EdgeValuesOf, EqualValuesDecodeToNearThemselves) {
  const bool rotates = GetCodec(GetParam()).rotates();
  for (float value : {1.0f, -1.0f, 3.1415927f, 1e-20f, 1e20f}) {
    double mean = 0, largest_error = 0;
    for (float decoded : RoundTrip(GetParam(), std::vector<float>(512, value))) {
      mean += decoded / value / 512;
      largest_error = std::max<double>(largest_error, std::abs(decoded / value - 1));
    }
    const int entries = core::TopkEntries(GetParam());
    const double expected = entries > 0 ? entries / 512.0 : 1;
    EXPECT_NEAR(mean, expected, rotates ? 0.5 : 0x1p-8) << value;
    if (entries == 0) {
      EXPECT_LE(largest_error, rotates ? 3 : 0x1p-8) << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, EdgeValuesOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

// Blocks at the edge of the range in the coefficients, which no values below 2^94 reach.
class CoefficientsOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(CoefficientsOf, BeyondTheScalesRangeStayFiniteThroughManyRounds) {
  const Codec& codec = GetCodec(GetParam());
  std::vector<float> mean(512, std::nextafter(core::kMaxMagnitude, 0.0f)), residual(512, 0.0f);
  std::vector<uint8_t> scales(codec.ScaleBytes(512)), codes(codec.CodeBytes(512));
  for (int round = 0; round < 20; ++round) {
    for (float& x : mean) x = -x;
    ASSERT_TRUE(codec.Encode({.values = mean.data(),
                              .count = 512,
                              .rotation = kRotation,
                              .beta = 1,
                              .residual = residual.data(),
                              .next_residual = residual.data(),
                              .gain = 1.25f,
                              .saturate = true,
                              .scales = scales.data(),
                              .codes = codes.data()}));
    ASSERT_TRUE(codec.Validate(scales.data(), codes.data(), 512).ok());
    std::vector<float> decoded(512);
    codec.Decode({.scales = scales.data(),
                  .codes = codes.data(),
                  .rotation = kRotation,
                  .values = decoded.data(),
                  .count = 512});
    for (float value : decoded) ASSERT_LT(std::abs(value), core::kMaxMagnitude);
    for (float value : residual) ASSERT_LE(std::abs(value), 2 * core::kMaxMagnitude);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, CoefficientsOf,
                         ::testing::Values(CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4),
                         [](const auto& test) { return CodecTestName(test.param); });

}  // namespace
}  // namespace causeway::codecs
