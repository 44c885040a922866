#include "codecs/chunk.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "tests/codecs/by_specification.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using ::testing::HasSubstr;

ChunkSpan SpanOf(CodecId codec, int64_t first_unit, int64_t values) {
  return {codec, first_unit, values, GetCodec(codec).rotates() ? RotationSeed(1, 0) : 0};
}

std::vector<float> DecodedBySpecification(const ChunkSpan& span, std::span<const float> values) {
  if (!GetCodec(span.codec).rotates()) return BySpecification(span.codec, values, 1).decoded;
  const Rotation rotation = {span.rotation_seed, 16 * span.first_unit};
  const Specified specified = BySpecification(span.codec, RotatedBySpecification(rotation, values), 1);
  std::vector<float> decoded = RotatedBackBySpecification(rotation, specified.decoded);
  decoded.resize(values.size());
  return decoded;
}

std::string Encode(const ChunkSpan& span, std::span<const float> values) {
  auto chunk = EncodeChunk(span, values, {});
  EXPECT_TRUE(chunk.ok()) << chunk.status();
  return *chunk;
}

class ChunkOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(ChunkOf, ComesBackWithItsSpanAndItsValues) {
  for (int64_t count : {1, 255, 256, 257, 4095, 4096, 4097, 9000}) {
    const std::vector<float> values = UniformValues(count, count);
    const ChunkSpan span = SpanOf(GetParam(), 12, count);
    const std::string bytes = Encode(span, values);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), ChunkBytes(GetParam(), count));
    EXPECT_EQ(bytes.size() % 64, 0u);
    const auto view = ChunkView::Parse(bytes);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->span(), span);
    std::vector<float> decoded(count);
    view->Decode(12, decoded);
    EXPECT_EQ(Bits(decoded), Bits(DecodedBySpecification(span, values)));
  }
}

TEST_P(ChunkOf, DecodesFromAnyUnitOn) {
  const std::vector<float> values = UniformValues(9000, 5);
  const std::string bytes = Encode(SpanOf(GetParam(), 12, 9000), values);
  const auto view = ChunkView::Parse(bytes);
  std::vector<float> whole(9000), part(1000), sum(1000, 0.0f);
  view->Decode(12, whole);
  view->Decode(13, part);
  view->DecodeAdd(13, 1.0f, sum);
  const std::vector<float> expected(whole.begin() + 4096, whole.begin() + 5096);
  EXPECT_EQ(Bits(part), Bits(expected));
  EXPECT_EQ(sum, expected);
}

TEST_P(ChunkOf, DecodingWritesNothingBeyondItsTarget) {
  const std::string bytes = Encode(SpanOf(GetParam(), 0, 300), UniformValues(300, 5));
  std::vector<float> padded(4096, 0.0f);
  ChunkView::Parse(bytes)->Decode(0, std::span(padded).first(300));
  for (size_t i = 300; i < padded.size(); ++i) ASSERT_EQ(padded[i], 0.0f);
}

TEST_P(ChunkOf, AskingBeyondItIsTheCallersBug) {
  const std::string bytes = Encode(SpanOf(GetParam(), 4, 5000), UniformValues(5000, 5));
  const auto view = ChunkView::Parse(bytes);
  std::vector<float> values(5000);
  EXPECT_DEATH(view->Decode(3, std::span(values).first(1)), "CHECK failed");
  EXPECT_DEATH(view->Decode(5, std::span(values).first(905)), "CHECK failed");
  EXPECT_DEATH(view->DecodeAdd(6, 1.0f, std::span(values).first(1)), "CHECK failed");
}

// A merge adds up whole blocks of a codec that rotates, and rotates the sum back once.
TEST_P(ChunkOf, AddsInItsDomainFromAnyUnitOn) {
  const ChunkSpan span = SpanOf(GetParam(), 12, 9000);
  const std::string bytes = Encode(span, UniformValues(9000, 5));
  const auto view = ChunkView::Parse(bytes);
  std::vector<float> plain(9000), sum(ResidualValues(SpanOf(GetParam(), 13, 9000 - 4096)), 0.0f);
  view->Decode(12, plain);
  view->DecodeAddInDomain(13, 1.0f, sum);
  if (view->rotates()) sum = RotatedBackBySpecification({span.rotation_seed, 16 * 13}, sum);
  sum.resize(9000 - 4096);
  const std::vector<float> expected(plain.begin() + 4096, plain.end());
  EXPECT_EQ(sum, expected);
}

TEST_P(ChunkOf, ValuesOutOfRangeAreRefusedWithTheirIndex) {
  const ChunkSpan span = SpanOf(GetParam(), 0, 5000);
  const float huge = core::kMaxMagnitude, infinity = std::numeric_limits<float>::infinity();
  for (float bad : {huge, -huge, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    if (std::isfinite(bad) && GetCodec(GetParam()).rotates()) continue;  // below: it is spread over 256
    for (size_t index : {0, 255, 256, 4096, 4999}) {
      for (float beta : {0.0f, 1.0f}) {
        std::vector<float> values = UniformValues(5000, 1);
        values[index] = bad;
        const std::vector<float> residual(beta > 0 ? ResidualValues(span) : 0, 0.5f), before = residual;
        std::vector<float> next(residual.size());
        const auto chunk = EncodeChunk(span, values, {beta, residual, next});
        ASSERT_EQ(chunk.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(chunk.status().message()), HasSubstr(absl::StrCat("value ", index, " is")));
        EXPECT_EQ(residual, before);
      }
    }
  }
}

TEST_P(ChunkOf, FeedbackThatLeavesTheRangeIsRefused) {
  const ChunkSpan span = SpanOf(GetParam(), 0, 5000);
  std::vector<float> values = UniformValues(5000, 1), residual(ResidualValues(span), 0.5f), next(residual.size());
  const bool rotates = GetCodec(GetParam()).rotates();
  values[4500] = rotates ? 0.9f * kMaxRotatedMagnitude : 0.75f * core::kMaxMagnitude;  // in range, but not the sum
  std::fill_n(residual.begin() + 4500 / 256 * 256, 256, std::nextafter(core::kMaxMagnitude, 0.0f));
  const auto chunk = EncodeChunk(span, values, {1.0f, residual, next});
  EXPECT_EQ(chunk.status().code(), absl::StatusCode::kInvalidArgument);
  const char* where = rotates ? "values 4352 to 4607 with their residual" : "value 4500 is";
  EXPECT_THAT(std::string(chunk.status().message()), HasSubstr(where));
}

TEST_P(ChunkOf, FeedbackEncodesTheSumAndKeepsWhatWasDropped) {
  const ChunkSpan span = SpanOf(GetParam(), 0, 5000);
  const std::vector<float> values = UniformValues(5000, 1), residual = UniformValues(ResidualValues(span), 2);
  std::vector<float> next(residual.size()), decoded(residual.size());
  const auto chunk = EncodeChunk(span, values, {0.5f, residual, next});
  ASSERT_TRUE(chunk.ok());
  ChunkView::Parse(*chunk)->DecodeAddInDomain(0, 1.0f, decoded);
  const bool rotates = GetCodec(GetParam()).rotates();
  const std::vector<float> x = rotates ? RotatedBySpecification({span.rotation_seed, 0}, values) : values;
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(next[i], std::fma(0.5f, residual[i], x[i]) - decoded[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Codecs, ChunkOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(Chunk, BitsPerValueAreThoseOfTheDesign) {
  const int64_t million_values = 244 * core::kUnitValues;
  const auto bits = [&](CodecId codec) { return 8.0 * (ChunkBytes(codec, million_values) - 64) / million_values; };
  EXPECT_NEAR(bits(CodecId::kFloat32), 32, 0.01);
  EXPECT_NEAR(bits(CodecId::kBfloat16), 16, 0.01);
  EXPECT_NEAR(bits(CodecId::kInt8), 8.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kInt4), 4.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kE3m0), 4.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kSign), 1.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kRotatedSign), 1.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kRotatedLm2), 2.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kRotatedLm4), 4.0625, 0.01);
  EXPECT_NEAR(bits(CodecId::kTopk), 8.0 * 114 / 4096, 0.01);
  EXPECT_NEAR(bits(CodecId::kOnebitAdamSign), 1, 0.01);
}

class RotatedChunkOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(RotatedChunkOf, TakesAllThatIsBelow2To94AndNamesTheValueThatIsBeyond) {
  const ChunkSpan span = SpanOf(GetParam(), 12, 5000);
  std::vector<float> values(5000, std::nextafter(kMaxRotatedMagnitude, 0.0f));
  EXPECT_TRUE(EncodeChunk(span, values, {}).ok());
  values[300] = 0x1p105f;  // its sixteenth is beyond
  EXPECT_THAT(std::string(EncodeChunk(span, values, {}).status().message()), HasSubstr("value 300 is"));
  values[300] = 0;
  values[4999] = -0x1p105f;
  EXPECT_THAT(std::string(EncodeChunk(span, values, {}).status().message()), HasSubstr("value 4999 is"));
}

INSTANTIATE_TEST_SUITE_P(Codecs, RotatedChunkOf,
                         ::testing::Values(CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(Chunk, SignWithFeedbackHasALargerScale) {
  const std::vector<float> values(256, 1.0f), residual(256, 0.0f);
  std::vector<float> next(256), decoded(256);
  const auto chunk = EncodeChunk({CodecId::kSign, 0, 256}, values, {1.0f, residual, next});
  ChunkView::Parse(*chunk)->Decode(0, decoded);
  EXPECT_EQ(decoded[0], 1.25f);
  EXPECT_EQ(next[0], -0.25f);
}

}  // namespace
}  // namespace causeway::codecs
