#include "codecs/codec.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codecs/chunk.h"
#include "codecs/compression.h"
#include "core/limits.h"
#include "tests/codecs/distributions.h"
#include "tests/codecs/encoded.h"
#include "tests/codecs/test_values.h"
#include "tests/folders.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using ::testing::Each;

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

// The wire format, pinned byte by byte: tests/golden/<codec>.hex holds a chunk of every codec, <codec>_zstd.hex the
// same one compressed. They were written once and change only together with docs/wire_format.md. Another zstd may
// compress to other bytes, so of a compressed chunk only what it expands to is pinned.

// Two blocks, the second partly padding; scales from 2^-3 to 2^3, zeros of both signs, a denormal and an outlier.
std::vector<float> GoldenInput() {
  std::vector<float> values = UniformValues(300, 2026);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<float>(1 << i % 7) / 8;
  values[10] = 0.0f;
  values[11] = -0.0f;
  values[12] = 0x1p-149f;
  values[270] = -1000.0f;
  return values;
}

std::string Hex(const std::string& bytes) {
  constexpr size_t kLine = 32;
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += kLine) {
    absl::StrAppend(&text, absl::BytesToHexString(bytes.substr(at, kLine)), "\n");
  }
  return text;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string GoldenChunk(core::CodecId codec) {
  const uint64_t seed = GetCodec(codec).rotates() ? RotationSeed(7, 1) : 0;
  return *EncodeChunk({codec, 3, 300, seed}, GoldenInput(), {});
}

std::string KeptPath(const std::string& name) { return InSource("tests/golden/" + name); }

// Fails with what is to be done. `actual` is left where it can be copied from.
void FailWith(const std::string& what, const std::string& name, const std::string& actual) {
  const std::string written = InBuild("golden/" + name);
  std::filesystem::create_directories(InBuild("golden"));
  std::ofstream(written) << actual;
  FAIL() << what << KeptPath(name)
         << ". Sites and coordinators of other versions would not understand each other. If this is meant: a new codec "
            "number or magic, docs/wire_format.md, then copy "
         << written;
}

class Golden : public ::testing::TestWithParam<core::CodecId> {};

TEST_P(Golden, BytesAreThoseOfTheDocumentedFormat) {
  const std::string name = absl::StrCat(core::CodecName(GetParam()), ".hex");
  const std::string actual = Hex(GoldenChunk(GetParam()));
  if (ReadFile(KeptPath(name)) == actual) return;
  FailWith(absl::StrCat("The bytes of ", core::CodecName(GetParam()), " are not those in "), name, actual);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Golden, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

class GoldenCompressed : public ::testing::TestWithParam<core::CodecId> {};

TEST_P(GoldenCompressed, ExpandsToTheDocumentedChunk) {
  const std::string name = absl::StrCat(core::CodecName(GetParam()), "_zstd.hex");
  const std::string chunk = GoldenChunk(GetParam());
  const auto expanded =
      ExpandChunk(absl::HexStringToBytes(absl::StrReplaceAll(ReadFile(KeptPath(name)), {{"\n", ""}})));
  if (expanded.ok() && *expanded == chunk) return;
  FailWith(absl::StrCat("Not the chunk of ", core::CodecName(GetParam()), " (", expanded.status().ToString(),
                        ") comes out of "),
           name, Hex(CompressChunk(chunk)));
}

INSTANTIATE_TEST_SUITE_P(Codecs, GoldenCompressed,
                         ::testing::Values(core::CodecId::kBfloat16, core::CodecId::kInt8, core::CodecId::kInt4,
                                           core::CodecId::kE3m0, core::CodecId::kRotatedLm4),
                         [](const auto& test) { return CodecTestName(test.param); });

// Values at the edges of what codecs take: what they decode to is defined for each, and the same in every version.

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
