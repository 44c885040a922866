#include "codecs/chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using ::testing::HasSubstr;

core::Fragment FragmentOf(const std::vector<int64_t>& sizes) {
  core::Manifest manifest;
  for (int64_t size : sizes) manifest.push_back({absl::StrCat("t", manifest.size()), {size}});
  std::vector<int> all(sizes.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return core::FragmentMap(manifest, {all}).fragment(0);
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
    const ChunkSpan span = {GetParam(), 12, count};
    const std::string bytes = Encode(span, values);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), ChunkBytes(GetParam(), count));
    EXPECT_EQ(bytes.size() % 64, 0u);
    const auto view = ChunkView::Parse(bytes);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->span(), span);
    std::vector<float> decoded(count);
    view->Decode(12, decoded);
    for (int64_t i = 0; i < count; ++i) EXPECT_NEAR(decoded[i], values[i], 2.0) << i;  // codec_test.cc has the bounds
  }
}

TEST_P(ChunkOf, DecodesFromAnyUnitOn) {
  const std::vector<float> values = UniformValues(9000, 5);
  const std::string bytes = Encode({GetParam(), 12, 9000}, values);
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
  const std::string bytes = Encode({GetParam(), 0, 300}, UniformValues(300, 5));
  std::vector<float> padded(4096, 0.0f);
  ChunkView::Parse(bytes)->Decode(0, std::span(padded).first(300));
  for (size_t i = 300; i < padded.size(); ++i) ASSERT_EQ(padded[i], 0.0f);
}

TEST_P(ChunkOf, AskingBeyondItIsTheCallersBug) {
  const std::string bytes = Encode({GetParam(), 4, 5000}, UniformValues(5000, 5));
  const auto view = ChunkView::Parse(bytes);
  std::vector<float> values(5000);
  EXPECT_DEATH(view->Decode(3, std::span(values).first(1)), "CHECK failed");
  EXPECT_DEATH(view->Decode(5, std::span(values).first(905)), "CHECK failed");
  EXPECT_DEATH(view->DecodeAdd(6, 1.0f, std::span(values).first(1)), "CHECK failed");
}

TEST_P(ChunkOf, PlanPacksAsManyWholeUnitsOfOneTensorAsFit) {
  const core::Fragment fragment = FragmentOf({5, 20'000'000, 4096, 4097});
  int64_t tensor = 0, in_tensor = 0;
  for (const ChunkSpan& span : PlanChunks(fragment, GetParam())) {
    const core::TensorPlace& place = fragment.tensors[tensor];
    EXPECT_EQ(span.codec, GetParam());
    EXPECT_EQ(span.first_value(), place.first_unit * core::kUnitValues + in_tensor);
    EXPECT_LE(ChunkBytes(GetParam(), span.values), core::kMaxChunkBytes);
    in_tensor += span.values;
    if (in_tensor < place.values) {
      EXPECT_EQ(span.values % core::kUnitValues, 0);
      EXPECT_GT(ChunkBytes(GetParam(), span.values + core::kUnitValues), core::kMaxChunkBytes);
    } else {
      EXPECT_EQ(in_tensor, place.values);
      ++tensor;
      in_tensor = 0;
    }
  }
  EXPECT_EQ(tensor, 4);
}

TEST_P(ChunkOf, ValuesOutOfRangeAreRefusedWithTheirIndex) {
  const float huge = core::kMaxMagnitude;
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {huge, -huge, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t index : {0, 255, 256, 4096, 4999}) {
      std::vector<float> values = UniformValues(5000, 1);
      values[index] = bad;
      const auto chunk = EncodeChunk({GetParam(), 0, 5000}, values, {});
      EXPECT_EQ(chunk.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(chunk.status().message()), HasSubstr(absl::StrCat("value ", index, " is")));
    }
  }
}

TEST_P(ChunkOf, FeedbackThatLeavesTheRangeIsRefusedAndTheResidualUntouched) {
  std::vector<float> values = UniformValues(5000, 1), residual(5000, 0.5f);
  values[4500] = residual[4500] = 0.75f * core::kMaxMagnitude;  // each is in range
  const std::vector<float> before = residual;
  const auto chunk = EncodeChunk({GetParam(), 0, 5000}, values, {1.0f, residual, residual});
  EXPECT_THAT(std::string(chunk.status().message()), HasSubstr("value 4500 is"));
  EXPECT_EQ(residual, before);
}

TEST_P(ChunkOf, FeedbackEncodesTheSumAndKeepsWhatWasDropped) {
  const std::vector<float> values = UniformValues(5000, 1), residual = UniformValues(5000, 2);
  std::vector<float> next(5000), decoded(5000);
  const auto chunk = EncodeChunk({GetParam(), 0, 5000}, values, {0.5f, residual, next});
  ASSERT_TRUE(chunk.ok());
  ChunkView::Parse(*chunk)->Decode(0, decoded);
  for (size_t i = 0; i < values.size(); ++i) {
    const float input = std::fma(0.5f, residual[i], values[i]);
    ASSERT_EQ(next[i], input - decoded[i]) << i;
  }
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
  EXPECT_NEAR(bits(CodecId::kSign), 1.0625, 0.01);
}

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
