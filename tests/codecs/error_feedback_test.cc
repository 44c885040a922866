#include "codecs/error_feedback.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/codecs/by_specification.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

core::BufferPool pool;

using core::CodecId;
using ::testing::HasSubstr;

core::Fragment OneTensor(int64_t size) { return core::FragmentMap({{"t", {size}}}, {{0}}).fragment(0); }

std::vector<float> DecodeAll(const std::vector<core::Bytes>& chunks, int64_t padded_values) {
  std::vector<float> values(padded_values, 0.0f);
  for (const core::Bytes& chunk : chunks) {
    const auto view = ChunkView::Parse(chunk);
    EXPECT_TRUE(view.ok()) << view.status();
    const ChunkSpan& span = view->span();
    view->Decode(span.first_unit, std::span(values).subspan(span.first_value(), span.values));
  }
  return values;
}

std::vector<float> Padded(std::vector<float> values) {
  values.resize(core::UnitsFor(values.size()) * core::kUnitValues, 0.0f);
  return values;
}

// A residual as the values have it: of a codec that rotates, rotated back.
std::vector<float> Plain(const ChunkSpan& span, std::span<const float> residual) {
  if (GetCodec(span.codec).rotates()) return RotatedBackBySpecification({span.rotation_seed, 0}, residual);
  return {residual.begin(), residual.end()};
}

// The magnitude that value i's rounding is relative to: a rotation mixes the values of its block.
double Largest(const ChunkSpan& span, std::span<const double> magnitudes, int64_t i) {
  if (!GetCodec(span.codec).rotates()) return magnitudes[i];
  const int64_t begin = i / 256 * 256;
  return *std::ranges::max_element(magnitudes.subspan(begin, std::min<int64_t>(256, std::ssize(magnitudes) - begin)));
}

class FeedbackWith : public ::testing::TestWithParam<CodecId> {};

// Invariant 5: Σ decoded + e = Σ inputs, up to the rounding of 50 sums.
TEST_P(FeedbackWith, FiftyRoundsLoseNothing) {
  std::vector<int64_t> sizes = {4095, 4096, 4097, 511, 512, 513, 1000, 2049};
  for (int64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (int64_t size : sizes) {
    const core::Fragment fragment = OneTensor(size);
    const std::vector<ChunkSpan> plan = PlanChunks(fragment, {GetParam()});
    ErrorFeedback feedback(fragment.padded_values(), 1.0f, &pool);
    std::vector<double> inputs(size), magnitudes(size), decoded(size);
    for (int round = 0; round < 50; ++round) {
      const std::vector<float> values = Padded(UniformValues(size, 1000 * size + round));
      const auto chunks = feedback.Encode(plan, values);
      ASSERT_TRUE(chunks.ok()) << chunks.status();
      feedback.Admit();
      const std::vector<float> received = DecodeAll(*chunks, fragment.padded_values());
      for (int64_t i = 0; i < size; ++i) {
        inputs[i] += values[i];
        magnitudes[i] += std::abs(values[i]);
        decoded[i] += received[i];
      }
    }
    const std::vector<float> residual = Plain(plan[0], feedback.residual());
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_LE(std::abs(decoded[i] + residual[i] - inputs[i]), 50 * 0x1p-22 * Largest(plan[0], magnitudes, i))
          << "value " << i << " of " << size;
    }
    const std::span<const float> padding = feedback.residual().subspan(ResidualValues(plan[0]));
    ASSERT_EQ(std::count(padding.begin(), padding.end(), 0.0f), std::ssize(padding)) << "padding after " << size;
  }
}

TEST_P(FeedbackWith, RefusedContributionLeavesTheResidualAndTheNextBytesAsTheyWere) {
  const std::vector<ChunkSpan> plan = PlanChunks(OneTensor(5000), {GetParam()});
  ErrorFeedback feedback(8192, 1.0f, &pool), undisturbed(8192, 1.0f, &pool);
  const std::vector<float> first = Padded(UniformValues(5000, 1)), second = Padded(UniformValues(5000, 2));
  ASSERT_TRUE(feedback.Encode(plan, first).ok() && undisturbed.Encode(plan, first).ok());
  feedback.Admit();
  undisturbed.Admit();
  ASSERT_TRUE(feedback.Encode(plan, Padded(UniformValues(5000, 3))).ok());
  EXPECT_TRUE(feedback.pending());
  feedback.Refuse();
  EXPECT_EQ(Bits(feedback.residual()), Bits(undisturbed.residual()));
  EXPECT_EQ(*feedback.Encode(plan, second), *undisturbed.Encode(plan, second));
}

TEST_P(FeedbackWith, RestoredResidualGoesOnWithTheSameBytes) {
  const std::vector<ChunkSpan> plan = PlanChunks(OneTensor(300), {GetParam()});
  ErrorFeedback feedback(4096, 0.5f, &pool), restored(4096, 0.5f, &pool);
  ASSERT_TRUE(feedback.Encode(plan, Padded(UniformValues(300, 1))).ok());
  feedback.Admit();
  restored.Restore(feedback.residual());
  const std::vector<float> next = Padded(UniformValues(300, 2));
  EXPECT_EQ(*feedback.Encode(plan, next), *restored.Encode(plan, next));
}

INSTANTIATE_TEST_SUITE_P(Codecs, FeedbackWith, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(ErrorFeedback, SwitchedOffKeepsNothingAndEncodesTheValuesAlone) {
  const std::vector<float> values = Padded(UniformValues(300, 1));
  ErrorFeedback feedback(4096, 0.0f, &pool);
  for (int round = 0; round < 2; ++round) {
    const auto chunks = feedback.Encode({{CodecId::kInt4, 0, 300}}, values);
    ASSERT_TRUE(chunks.ok());
    EXPECT_EQ(chunks->front(), *EncodeChunk({CodecId::kInt4, 0, 300}, std::span(values).first(300), {}));
    feedback.Admit();
  }
  EXPECT_TRUE(feedback.residual().empty());
  EXPECT_EQ(feedback.ResidualNorm(), 0);
}

TEST(ErrorFeedback, BadValueIsRefusedWithItsPlaceAndNothingIsPending) {
  std::vector<float> values = Padded(UniformValues(5000, 1));
  values[4100] = std::numeric_limits<float>::quiet_NaN();
  ErrorFeedback feedback(8192, 1.0f, &pool);
  const auto chunks = feedback.Encode({{CodecId::kInt4, 0, 4096}, {CodecId::kInt4, 1, 904}}, values);
  EXPECT_EQ(chunks.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(chunks.status().message()), HasSubstr("in the chunk at unit 1: value 4 is nan"));
  EXPECT_FALSE(feedback.pending());
  EXPECT_EQ(feedback.ResidualNorm(), 0);
}

TEST(ErrorFeedback, ResetForgetsResidualAndWhatWasPending) {
  const std::vector<float> values = Padded(UniformValues(300, 1));
  ErrorFeedback feedback(4096, 1.0f, &pool);
  ASSERT_TRUE(feedback.Encode({{CodecId::kSign, 0, 300}}, values).ok());
  feedback.Admit();
  EXPECT_GT(feedback.ResidualNorm(), 0);
  ASSERT_TRUE(feedback.Encode({{CodecId::kSign, 0, 300}}, values).ok());
  feedback.Reset();
  EXPECT_FALSE(feedback.pending());
  EXPECT_EQ(feedback.ResidualNorm(), 0);
}

TEST(ErrorFeedback, NormIsEuclidean) {
  ErrorFeedback feedback(4096, 1.0f, &pool);
  std::vector<float> residual(4096, 0.0f);
  residual[0] = 3;
  residual[4095] = -4;
  feedback.Restore(residual);
  EXPECT_EQ(feedback.ResidualNorm(), 5);
}

TEST(ErrorFeedback, EncodingTwiceWithoutAnOutcomeIsTheCallersBug) {
  const std::vector<float> values(4096);
  ErrorFeedback feedback(4096, 1.0f, &pool);
  ASSERT_TRUE(feedback.Encode({{CodecId::kInt4, 0, 10}}, values).ok());
  EXPECT_DEATH(feedback.Encode({{CodecId::kInt4, 0, 10}}, values).IgnoreError(), "CHECK failed");
}

}  // namespace
}  // namespace causeway::codecs
