#include "codecs/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/limits.h"
#include "tests/codecs/distributions.h"
#include "tests/codecs/encoded.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

class EveryCodec : public ::testing::TestWithParam<CodecId> {};

TEST_P(EveryCodec, WritesAndDecodesWhatTheSpecificationSaysBitForBit) {
  for (size_t count : {1, 2, 15, 16, 17, 255, 256, 257, 511, 4096, 4097, 10'000}) {
    for (float magnitude : {1.0f, 3e-20f, 1e25f}) {
      std::vector<float> values = UniformValues(count, count);
      for (float& value : values) value *= magnitude;
      for (float gain : {1.0f, 1.25f}) {
        SCOPED_TRACE(testing::Message() << count << " values of magnitude " << magnitude << ", gain " << gain);
        ExpectAsSpecified(GetParam(), values, gain);
      }
    }
  }
}

TEST_P(EveryCodec, WithFeedbackEncodesWhatTheSpecificationSaysAndKeepsTheRest) {
  for (size_t count : {1, 255, 257, 4097, 10'000}) {
    const std::vector<float> residual = UniformValues(DomainValues(GetParam(), count), 2);
    for (float beta : {1.0f, 0.3f}) {
      SCOPED_TRACE(testing::Message() << count << " values, beta " << beta);
      ExpectAsSpecified(GetParam(), UniformValues(count, 1), 1.25f, beta, residual);
    }
  }
}

TEST_P(EveryCodec, SumOfSquaresIsThatOfWhatItDecodesToInItsDomain) {
  for (size_t count : {1, 3, 255, 256, 257, 4095, 4096, 4097, 10'000}) {
    for (float magnitude : {1.0f, 1e-20f, 1e25f}) {
      std::vector<float> values = UniformValues(count, count);
      for (float& value : values) value *= magnitude;
      values.back() = 0;  // and a block of zeros alone
      const Encoded encoded = Encode(GetParam(), values);
      std::vector<float> decoded(DomainValues(GetParam(), count));
      DecodeJob job = JobOf(GetParam(), encoded, decoded);
      job.rotation.reset();
      GetCodec(GetParam()).Decode(job);
      double expected = 0;
      for (float value : decoded) expected += static_cast<double>(value) * value;
      const double sum = GetCodec(GetParam()).SumSquares(job.scales, job.codes, static_cast<int64_t>(count));
      EXPECT_NEAR(sum, expected, 2e-6 * expected) << count << " values of magnitude " << magnitude;
      EXPECT_EQ(std::isfinite(sum) && sum >= 0, true);
    }
  }
}

TEST_P(EveryCodec, GainUndoesWhatItTakesOfGaussianValues) {
  if (core::TopkEntries(GetParam()) > 0) return;  // what it drops depends on the values, and feedback brings it back
  const std::vector<float> values = ValuesOf(Shape::kGauss, 200'000, 1), d = InDomain(GetParam(), values);
  std::vector<float> decoded(d.size());
  const Encoded encoded = Encode(GetParam(), values);
  DecodeJob job = JobOf(GetParam(), encoded, decoded);
  job.rotation.reset();
  GetCodec(GetParam()).Decode(job);
  double along = 0, square = 0;
  for (size_t i = 0; i < d.size(); ++i) {
    along += static_cast<double>(decoded[i]) * d[i];
    square += static_cast<double>(d[i]) * d[i];
  }
  EXPECT_NEAR(core::CodecGain(GetParam()) * along / square, 1, 0.01);
}

TEST_P(EveryCodec, TakesTheBitsAndHasTheDomainThatItsNumberIsSaidToHave) {
  const Codec& codec = GetCodec(GetParam());
  EXPECT_EQ(codec.rotates(), core::Rotates(GetParam()));
  if (core::TopkEntries(GetParam()) > 0) return;
  EXPECT_EQ(codec.CodeBytes(core::kUnitValues) * 8, core::CodeBits(GetParam()) * core::kUnitValues);
}

TEST_P(EveryCodec, DecodeAddIsOneFmaOfTheDecodedValue) {
  const std::vector<float> values = UniformValues(5000, 1);
  const Encoded encoded = Encode(GetParam(), values);
  const std::vector<float> decoded = Decode(GetParam(), encoded, values.size());
  std::vector<float> sum = UniformValues(5000, 2), expected = sum;
  for (size_t i = 0; i < sum.size(); ++i) expected[i] = std::fma(0.3f, decoded[i], expected[i]);
  DecodeJob job = JobOf(GetParam(), encoded, sum);
  job.add = 0.3f;
  GetCodec(GetParam()).Decode(job);
  EXPECT_EQ(Bits(sum), Bits(expected));
}

// The terms of a merge: whole blocks as they were before they are rotated back.
TEST_P(EveryCodec, DecodesInItsDomainWithoutRotatingBack) {
  const std::vector<float> values = UniformValues(5000, 1);
  const Specified specified = BySpecification(GetParam(), InDomain(GetParam(), values), 1);
  const Encoded encoded = Encode(GetParam(), values);
  std::vector<float> sum = UniformValues(specified.decoded.size(), 2), expected = sum;
  for (size_t i = 0; i < sum.size(); ++i) expected[i] = std::fma(0.3f, specified.decoded[i], expected[i]);
  DecodeJob job = JobOf(GetParam(), encoded, sum);
  job.rotation.reset();
  job.add = 0.3f;
  GetCodec(GetParam()).Decode(job);
  EXPECT_EQ(Bits(sum), Bits(expected));
}

TEST_P(EveryCodec, InputInItsDomainGivesTheSameBytes) {
  const std::vector<float> values = UniformValues(5000, 1);
  const std::vector<float> d = InDomain(GetParam(), values);
  Encoded encoded = Encode(GetParam(), values);
  const Encoded expected = encoded;
  encoded.scales.assign(encoded.scales.size(), 0);
  encoded.codes.assign(encoded.codes.size(), 0);
  EXPECT_TRUE(GetCodec(GetParam())
                  .Encode({.values = d.data(),
                           .count = static_cast<int64_t>(values.size()),
                           .scales = encoded.scales.data(),
                           .codes = encoded.codes.data()}));
  EXPECT_EQ(encoded.scales, expected.scales);
  EXPECT_EQ(encoded.codes, expected.codes);
}

TEST_P(EveryCodec, AcceptsWhatItWrites) {
  for (size_t count : {1, 100, 256, 300, 4097}) {
    std::vector<float> values = UniformValues(count, count);
    values[0] = -0.0f;
    const Encoded encoded = Encode(GetParam(), values);
    EXPECT_TRUE(GetCodec(GetParam()).Validate(encoded.scales.data(), encoded.codes.data(), count).ok());
  }
}

TEST_P(EveryCodec, OutlierCostsWhatSharesItsScaleAlone) {
  std::vector<float> values = UniformValues(5 * 4096, 4);
  const std::vector<float> without = RoundTrip(GetParam(), values);
  values[4096 + 300] = 1e27f;
  const std::vector<float> with = RoundTrip(GetParam(), values);
  if (GetParam() == CodecId::kOnebitAdamSign) {
    EXPECT_GT(std::abs(with[0]), 1e24f);  // one scale for all: this is why it is here for comparison only
    return;
  }
  const size_t together = core::TopkEntries(GetParam()) > 0 ? 4096 : 256;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(std::isfinite(with[i]));
    if (i / together != (4096 + 300) / together) {
      ASSERT_EQ(with[i], without[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(Float32, KeepsEveryBit) {
  std::vector<float> values = UniformValues(5000, 1);
  values[7] = -0.0f;
  values[8] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Bits(RoundTrip(CodecId::kFloat32, values)), Bits(values));
}

TEST(Bfloat16, RoundsTiesToEven) {
  // 1 + 2^-8 is halfway between 1 and 1 + 2^-7; 1 + 3 · 2^-8 between 1 + 2^-7 and 1 + 2^-6.
  const std::vector<float> values = {1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-8f + 0x1p-20f, -1 - 0x1p-8f};
  EXPECT_EQ(RoundTrip(CodecId::kBfloat16, values), (std::vector<float>{1, 1 + 0x1p-6f, 1 + 0x1p-7f, -1}));
}

TEST(Int8, ErrorIsAtMostHalfAStepAndAScalesRounding) {
  const std::vector<float> values = UniformValues(4096, 9);
  const std::vector<float> decoded = RoundTrip(CodecId::kInt8, values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_LE(std::abs(decoded[i] - values[i]), 0.5f / 127 + 0x1p-8f);
}

TEST(E3m0, LevelsArePowersOfTwoAndTiesGoUp) {
  // The largest is 1, and so is the scale. Halfway between levels: 0.75, 0.375, …, and 2^-7 between 0 and 2^-6.
  const float below = std::nextafter(0.75f, 0.0f);
  const std::vector<float> values = {1.0f, 0.75f, below, -0.375f, 0x1p-6f, 0x1p-7f, std::nextafter(0x1p-7f, 0.0f)};
  const std::vector<float> expected = {1, 1, 0.5f, -0.5f, 0x1p-6f, 0x1p-6f, 0};
  EXPECT_EQ(RoundTrip(CodecId::kE3m0, values), expected);
}

TEST(Sign, NegativeZeroDecodesToMinusTheScale) {
  const std::vector<float> values = {-0.0f, 0.0f, 3.0f, -1.0f};
  EXPECT_EQ(RoundTrip(CodecId::kSign, values), (std::vector<float>{-1, 1, 1, -1}));
}

TEST(Sign, MeanIsOverTheValuesAndNotThePadding) {
  EXPECT_EQ(RoundTrip(CodecId::kSign, std::vector<float>{2.0f}), std::vector<float>{2.0f});
  EXPECT_EQ(RoundTrip(CodecId::kSign, std::vector<float>{2.0f}, 1.25f), std::vector<float>{2.5f});
}

TEST(Topk, KeepsTheLargestOfEachUnitAndNothingElse) {
  const std::vector<float> values = UniformValues(2 * 4096 + 10, 3);
  for (const CodecId id : core::kTopkCodecs) {
    const std::vector<float> decoded = RoundTrip(id, values);
    for (size_t begin : {size_t{0}, size_t{4096}}) {
      float smallest_kept = 2, largest_dropped = 0;
      int kept = 0;
      for (size_t i = begin; i < begin + 4096; ++i) {
        const float magnitude = std::abs(values[i]);
        kept += decoded[i] != 0 ? 1 : 0;
        if (decoded[i] != 0) smallest_kept = std::min(smallest_kept, magnitude);
        if (decoded[i] == 0) largest_dropped = std::max(largest_dropped, magnitude);
      }
      EXPECT_EQ(kept, core::TopkEntries(id));
      EXPECT_GE(smallest_kept, largest_dropped);
    }
    for (size_t i = 2 * 4096; i < values.size(); ++i) EXPECT_GT(decoded[i] * values[i], 0);  // few: all of them
  }
}

TEST(Topk, OfEqualMagnitudesTheFirstStayAndZerosNever) {
  std::vector<float> values(4096, 0.0f);
  for (size_t i = 100; i < 300; ++i) values[i] = i % 2 == 0 ? 1.0f : -1.0f;
  std::vector<float> decoded = RoundTrip(CodecId::kTopk, values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(decoded[i], i >= 100 && i < 164 ? values[i] : 0, 0x1p-9) << i;
  std::fill(values.begin() + 103, values.end(), -0.0f);
  decoded = RoundTrip(CodecId::kTopk, values);
  EXPECT_NEAR(decoded[102], 1, 0x1p-9);
  EXPECT_EQ(Bits(std::span(decoded).subspan(103)), Bits(std::vector<float>(4096 - 103, 0.0f)));
}

TEST(OnebitAdamSign, ScaleIsTheRootMeanSquareOfAllValues) {
  std::vector<float> values(1000, 3.0f);
  values[999] = -std::sqrt(1000 * 25.0f - 999 * 9.0f);
  const std::vector<float> decoded = RoundTrip(CodecId::kOnebitAdamSign, values);
  EXPECT_NEAR(decoded[0], 5, 1e-5);
  EXPECT_EQ(decoded[999], -decoded[0]);
}

}  // namespace
}  // namespace causeway::codecs
