#include "codecs/chunk_writer.h"

#include <gtest/gtest.h>

#include <limits>

#include "codecs/encode_input.h"
#include "core/limits.h"
#include "tests/codecs/by_specification.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr size_t kPieces[] = {4096, 2 * 4096, 4096 + 100};
constexpr int64_t kValues = 4 * 4096 + 100;

ChunkSpan SpanOf(CodecId codec) { return {codec, 9, kValues, GetCodec(codec).rotates() ? RotationSeed(1, 0) : 0}; }

// A piece of an array that is in the codec's domain: whole blocks if it rotates.
template <typename Floats>
auto InDomain(CodecId codec, Floats& values, size_t at, size_t count) {
  return std::span(values).subspan(at, ResidualValues({codec, 0, static_cast<int64_t>(count)}));
}

// Every codec that a merge may write: not the one whose scale is the whole chunk's.
class ChunkWriterOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(ChunkWriterOf, PiecesGiveTheBytesOfTheWhole) {
  const ChunkSpan span = SpanOf(GetParam());
  const std::vector<float> values = UniformValues(kValues, 1), residual = UniformValues(ResidualValues(span), 2);
  for (float beta : {0.0f, 1.0f}) {
    ChunkWriter writer(span, GainFor(beta));
    std::vector<float> next(residual.size()), whole_next(residual.size());
    size_t at = 0;
    for (size_t piece : kPieces) {
      ChunkFeedback feedback;
      if (beta > 0) feedback = {beta, InDomain(GetParam(), residual, at, piece), InDomain(GetParam(), next, at, piece)};
      EXPECT_TRUE(writer.Append(std::span(values).subspan(at, piece), feedback));
      at += piece;
    }
    ChunkFeedback whole;
    if (beta > 0) whole = {beta, residual, whole_next};
    EXPECT_EQ(writer.Finish(), *EncodeChunk(span, values, whole));
    EXPECT_EQ(Bits(next), Bits(whole_next));
  }
}

TEST_P(ChunkWriterOf, MeanGivesTheSameBytesRotatedOrNotAndIsDecoded) {
  const ChunkSpan span = SpanOf(GetParam());
  const std::vector<float> values = UniformValues(kValues, 1);
  const std::string expected = *EncodeChunk(span, values, {});
  std::vector<float> received(kValues);
  ChunkView::Parse(expected)->Decode(9, received);
  for (bool in_domain : {false, true}) {
    std::vector<float> mean = values;
    if (in_domain && GetCodec(GetParam()).rotates()) mean = RotatedBySpecification({span.rotation_seed, 9 * 16}, mean);
    ChunkWriter writer(span, 1.0f);
    std::vector<float> decoded(kValues);
    size_t at = 0;
    for (size_t piece : kPieces) {
      const auto part = in_domain ? InDomain(GetParam(), mean, at, piece) : std::span(mean).subspan(at, piece);
      writer.WriteMean(at / core::kUnitValues, part, in_domain, {}, std::span(decoded).subspan(at, piece));
      at += piece;
    }
    EXPECT_EQ(writer.Finish(), expected);
    EXPECT_EQ(Bits(decoded), Bits(received));
  }
}

TEST_P(ChunkWriterOf, MeanBeyondTheRangeIsBroughtIntoIt) {
  std::vector<float> mean(300, 0x1p101f), decoded(300);
  for (size_t i = 0; i < mean.size(); i += 3) mean[i] = -mean[i];
  const ChunkSpan span = {GetParam(), 0, 300, GetCodec(GetParam()).rotates() ? uint64_t{5} : 0};
  std::vector<float> residual(ResidualValues(span), 0.0f);
  ChunkWriter writer(span, 1.25f);
  writer.WriteMean(0, mean, /*in_domain=*/false, {1.0f, residual, residual}, decoded);
  const std::string bytes = writer.Finish();
  const auto view = ChunkView::Parse(bytes);
  ASSERT_TRUE(view.ok()) << view.status();
  for (float value : decoded) ASSERT_LT(std::abs(value), core::kMaxMagnitude);
  for (float value : residual) ASSERT_LE(std::abs(value), 2 * core::kMaxMagnitude);
}

TEST_P(ChunkWriterOf, MeanInAnyOrderGivesTheSameBytes) {
  const ChunkSpan span = SpanOf(GetParam());
  const std::vector<float> values = UniformValues(kValues, 1);
  ChunkWriter writer(span, 1.0f);
  std::vector<float> decoded(kValues);
  for (int64_t unit : {3, 0, 4, 1, 2}) {
    const int64_t at = unit * core::kUnitValues, count = std::min(core::kUnitValues, kValues - at);
    writer.WriteMean(unit, std::span(values).subspan(at, count), false, {}, std::span(decoded).subspan(at, count));
  }
  EXPECT_EQ(writer.Finish(), *EncodeChunk(span, values, {}));
}

INSTANTIATE_TEST_SUITE_P(Codecs, ChunkWriterOf,
                         ::testing::ValuesIn(std::begin(core::kAllCodecs), std::end(core::kAllCodecs) - 1),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(ChunkWriter, UnfinishedOrOverfullChunkIsTheCallersBug) {
  const std::vector<float> values(4097);
  ChunkWriter writer({CodecId::kInt4, 0, 4096}, 1.0f);
  EXPECT_DEATH(writer.Finish(), "CHECK failed");
  EXPECT_DEATH(writer.Append(values, {}), "CHECK failed");
  std::vector<float> decoded(10);
  EXPECT_DEATH(writer.WriteMean(0, std::span(values).first(10), false, {}, decoded), "CHECK failed");  // within a unit
}

TEST(ChunkWriter, MeanWithOneScaleForTheWholeChunkIsTheCallersBug) {
  static_assert(core::kAllCodecs[std::size(core::kAllCodecs) - 1] == CodecId::kOnebitAdamSign);
  const std::vector<float> mean(300);
  std::vector<float> decoded(300);
  ChunkWriter writer({CodecId::kOnebitAdamSign, 0, 300}, 1.0f);
  EXPECT_DEATH(writer.WriteMean(0, mean, /*in_domain=*/false, {}, decoded), "CHECK failed");
}

TEST(FirstOutOfRange, FindsTheFirstOfSeveral) {
  std::vector<float> values = UniformValues(1000, 1);
  EXPECT_EQ(FirstOutOfRange(values, core::kMaxMagnitude), std::nullopt);
  values[999] = core::kMaxMagnitude;
  EXPECT_EQ(FirstOutOfRange(values, core::kMaxMagnitude), 999u);
  EXPECT_EQ(FirstOutOfRange(values, 2 * core::kMaxMagnitude), std::nullopt);
  values[500] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(FirstOutOfRange(values, core::kMaxMagnitude), 500u);
}

}  // namespace
}  // namespace causeway::codecs
