#include "codecs/chunk.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"
#include "codecs/chunk_writer.h"
#include "codecs/codec.h"
#include "codecs/encode_input.h"
#include "codecs/rotation.h"
#include "core/limits.h"
#include "core/run_config.h"
#include "tests/codecs/by_specification.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using core::TensorKind;
using ::testing::ElementsAre;
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

std::string EncodeSpan(const ChunkSpan& span, std::span<const float> values) {
  auto chunk = EncodeChunk(span, values, {});
  EXPECT_TRUE(chunk.ok()) << chunk.status();
  return *chunk;
}

class ChunkOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(ChunkOf, ComesBackWithItsSpanAndItsValues) {
  for (int64_t count : {1, 255, 256, 257, 4095, 4096, 4097, 9000}) {
    const std::vector<float> values = UniformValues(count, count);
    const ChunkSpan span = SpanOf(GetParam(), 12, count);
    const std::string bytes = EncodeSpan(span, values);
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
  const std::string bytes = EncodeSpan(SpanOf(GetParam(), 12, 9000), values);
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
  const std::string bytes = EncodeSpan(SpanOf(GetParam(), 0, 300), UniformValues(300, 5));
  std::vector<float> padded(4096, 0.0f);
  ChunkView::Parse(bytes)->Decode(0, std::span(padded).first(300));
  for (size_t i = 300; i < padded.size(); ++i) ASSERT_EQ(padded[i], 0.0f);
}

TEST_P(ChunkOf, AskingBeyondItIsTheCallersBug) {
  const std::string bytes = EncodeSpan(SpanOf(GetParam(), 4, 5000), UniformValues(5000, 5));
  const auto view = ChunkView::Parse(bytes);
  std::vector<float> values(5000);
  EXPECT_DEATH(view->Decode(3, std::span(values).first(1)), "CHECK failed");
  EXPECT_DEATH(view->Decode(5, std::span(values).first(905)), "CHECK failed");
  EXPECT_DEATH(view->DecodeAdd(6, 1.0f, std::span(values).first(1)), "CHECK failed");
}

// A merge adds up whole blocks of a codec that rotates, and rotates the sum back once.
TEST_P(ChunkOf, AddsInItsDomainFromAnyUnitOn) {
  const ChunkSpan span = SpanOf(GetParam(), 12, 9000);
  const std::string bytes = EncodeSpan(span, UniformValues(9000, 5));
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

struct Tensor {
  int64_t values;
  TensorKind kind = TensorKind::kMatrix;
};

core::FragmentMap MapOf(const std::vector<Tensor>& tensors) {
  core::Manifest manifest;
  std::vector<int> all;
  for (const Tensor& tensor : tensors) {
    all.push_back(static_cast<int>(manifest.size()));
    manifest.push_back({absl::StrCat("t", manifest.size()), {tensor.values}, tensor.kind});
  }
  return core::FragmentMap(manifest, {all});
}

class PlanOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(PlanOf, PacksAsManyWholeUnitsOfOneTensorAsFitAndAnEighthOfTheFragmentAtMost) {
  const core::FragmentMap map = MapOf({{5}, {20'000'000}, {4096}, {4097}});
  const core::Fragment& fragment = map.fragment(0);
  int64_t tensor = 0, in_tensor = 0;
  for (const ChunkSpan& span : PlanChunks(fragment, {GetParam()})) {
    const core::TensorPlace& place = fragment.tensors[tensor];
    EXPECT_EQ(span.codec, GetParam());
    EXPECT_EQ(span.first_value(), place.first_unit * core::kUnitValues + in_tensor);
    EXPECT_LE(ChunkBytes(GetParam(), span.values), core::kMaxChunkBytes);
    in_tensor += span.values;
    if (in_tensor < place.values) {
      EXPECT_EQ(span.values % core::kUnitValues, 0);
      const bool full = ChunkBytes(GetParam(), span.values + core::kUnitValues) > core::kMaxChunkBytes;
      const bool shares = GetParam() != CodecId::kOnebitAdamSign;
      EXPECT_TRUE(full || (shares && span.units() == (fragment.units + 7) / 8)) << span.units();
    } else {
      EXPECT_EQ(in_tensor, place.values);
      ++tensor;
      in_tensor = 0;
    }
  }
  EXPECT_EQ(tensor, 4);
}

TEST_P(PlanOf, TakesTheUnitsOfTheDocumentsTable) {
  const auto units = [](CodecId codec) {
    switch (codec) {
      case CodecId::kFloat32: return 63;
      case CodecId::kBfloat16: return 127;
      case CodecId::kInt8: return 254;
      case CodecId::kInt4:
      case CodecId::kE3m0:
      case CodecId::kRotatedLm4: return 504;
      case CodecId::kSign:
      case CodecId::kRotatedSign: return 1927;
      case CodecId::kRotatedLm2: return 992;
      case CodecId::kTopk32: return 18'077;
      case CodecId::kTopk: return 9197;
      case CodecId::kTopk128: return 4639;
      case CodecId::kTopk256: return 2330;
      case CodecId::kTopk512: return 1167;
      case CodecId::kOnebitAdamSign: return 2047;
    }
    return 0;
  };
  const core::FragmentMap map = MapOf({{int64_t{160'000} * core::kUnitValues}});
  EXPECT_EQ(PlanChunks(map.fragment(0), {GetParam()})[0].units(), units(GetParam()));
}

TEST_P(PlanOf, HasTheFragmentsRotationSeedWhereTheCodecRotates) {
  const core::FragmentMap map({{"a", {10}}, {"b", {10}}}, {{0}, {1}});
  for (core::FragmentId id : {0, 1}) {
    const ChunkSpan span = PlanChunks(map.fragment(id), {GetParam(), {}, 99})[0];
    EXPECT_EQ(span.rotation_seed, GetCodec(GetParam()).rotates() ? RotationSeed(99, id) : 0);
  }
}

TEST_P(PlanOf, KindsThatAreExemptAreBfloat16) {
  const core::FragmentMap map = MapOf({{300, TensorKind::kEmbedding},
                                       {64, TensorKind::kNorm},
                                       {5000, TensorKind::kMatrix},
                                       {9, TensorKind::kExpert},
                                       {300, TensorKind::kHead}});
  const LegCodec leg = {GetParam(), {TensorKind::kNorm, TensorKind::kEmbedding}, 99};
  std::vector<CodecId> codecs;
  for (const ChunkSpan& span : PlanChunks(map.fragment(0), leg)) {
    codecs.push_back(span.codec);
    EXPECT_EQ(span.rotation_seed, GetCodec(span.codec).rotates() ? RotationSeed(99, 0) : 0);
  }
  const CodecId bf16 = CodecId::kBfloat16, other = GetParam();
  EXPECT_THAT(codecs, ElementsAre(bf16, bf16, other, other, other));
}

INSTANTIATE_TEST_SUITE_P(Codecs, PlanOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(LegCodec, OfARunIsItsConfigs) {
  core::RunConfig config;
  config.seed = 5;
  config.codec.up = CodecId::kTopk;
  config.codec.down = CodecId::kRotatedSign;
  config.codec.exempt = {TensorKind::kHead};
  const core::TensorPlace matrix = {.kind = TensorKind::kMatrix}, head = {.kind = TensorKind::kHead};
  EXPECT_EQ(UpLeg(config).CodecOf(matrix), CodecId::kTopk);
  EXPECT_EQ(DownLeg(config).CodecOf(matrix), CodecId::kRotatedSign);
  EXPECT_EQ(UpLeg(config).CodecOf(head), CodecId::kBfloat16);
  EXPECT_EQ(DownLeg(config).CodecOf(head), CodecId::kBfloat16);
  EXPECT_EQ(UpLeg(config).run_seed, 5u);
  EXPECT_EQ(DownLeg(config).run_seed, 5u);
}

TEST(LegCodec, OfParametersIsFloat32ForEveryKind) {
  for (TensorKind kind : {TensorKind::kMatrix, TensorKind::kNorm, TensorKind::kEmbedding}) {
    EXPECT_EQ(Unencoded().CodecOf({.kind = kind}), CodecId::kFloat32);
  }
}

constexpr size_t kPieces[] = {4096, 2 * 4096, 4096 + 100};
constexpr int64_t kValues = 4 * 4096 + 100;

ChunkSpan WrittenSpanOf(CodecId codec) {
  return {codec, 9, kValues, GetCodec(codec).rotates() ? RotationSeed(1, 0) : 0};
}

// A piece of an array that is in the codec's domain: whole blocks if it rotates.
template <typename Floats>
auto PieceInDomain(CodecId codec, Floats& values, size_t at, size_t count) {
  return std::span(values).subspan(at, ResidualValues({codec, 0, static_cast<int64_t>(count)}));
}

// Every codec that a merge may write: not the one whose scale is the whole chunk's.
class ChunkWriterOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(ChunkWriterOf, PiecesGiveTheBytesOfTheWhole) {
  const ChunkSpan span = WrittenSpanOf(GetParam());
  const std::vector<float> values = UniformValues(kValues, 1), residual = UniformValues(ResidualValues(span), 2);
  for (float beta : {0.0f, 1.0f}) {
    ChunkWriter writer(span, GainFor(beta));
    std::vector<float> next(residual.size()), whole_next(residual.size());
    size_t at = 0;
    for (size_t piece : kPieces) {
      ChunkFeedback feedback;
      if (beta > 0)
        feedback = {beta, PieceInDomain(GetParam(), residual, at, piece), PieceInDomain(GetParam(), next, at, piece)};
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
  const ChunkSpan span = WrittenSpanOf(GetParam());
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
      const auto part = in_domain ? PieceInDomain(GetParam(), mean, at, piece) : std::span(mean).subspan(at, piece);
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
  const ChunkSpan span = WrittenSpanOf(GetParam());
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
