// What error feedback leaves of the codecs' errors. A fixed signal, Student-t3, comes with fresh noise of the same norm
// each round; all that was sent is held against all that was to be sent.
//
//   accumulated error = ‖Σ decoded − Σ inputs‖ / ‖Σ inputs‖     after 50 rounds, β = 1
//
// With feedback it is the norm of one residual, so it falls as 1 / rounds. Source: docs/architecture.md.
#include <gtest/gtest.h>

#include <cstdio>

#include "codecs/error_feedback.h"
#include "tests/codecs/distributions.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr int64_t kValues = 1 << 18;
constexpr int kRounds = 50;

double AccumulatedError(CodecId codec, float beta) {
  const core::Fragment fragment = core::FragmentMap({{"t", {kValues}}}, {{0}}).fragment(0);
  const std::vector<ChunkSpan> plan = PlanChunks(fragment, {codec, {}, 1});
  const std::vector<float> signal = ValuesOf(Shape::kStudentT3, kValues, 1);
  ErrorFeedback feedback(fragment.padded_values(), beta);
  std::vector<float> inputs(kValues), decoded(kValues);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> input = ValuesOf(Shape::kStudentT3, kValues, 2 + round);
    const double same = Norm(signal) / Norm(input);
    for (int64_t i = 0; i < kValues; ++i) {
      input[i] = static_cast<float>(signal[i] + same * input[i]);
      inputs[i] += input[i];
    }
    const auto chunks = feedback.Encode(plan, input);
    EXPECT_TRUE(chunks.ok()) << chunks.status();
    feedback.Admit();
    for (const std::string& chunk : *chunks) {
      const auto view = ChunkView::Parse(chunk);
      view->DecodeAdd(view->span().first_unit, 1.0f,
                      std::span(decoded).subspan(view->span().first_value(), view->span().values));
    }
  }
  const double error = RelativeDistance(decoded, inputs);
  std::printf("%-16s  beta %g  %.5f\n", core::CodecName(codec), beta, error);
  return error;
}

TEST(AccumulatedError, OfRotatedCodecsIsSmallThoughTheTailIsHeavy) {
  EXPECT_LE(AccumulatedError(CodecId::kRotatedSign, 1.0f), 0.065);
  EXPECT_LE(AccumulatedError(CodecId::kRotatedLm4, 1.0f), 0.0032);
}

// One scale for everything is far too large for most values, which then swing around what they should be.
TEST(AccumulatedError, OfOneScaleForAllIsSeveralTimesThatOfRotatedBlocks) {
  EXPECT_GE(AccumulatedError(CodecId::kOnebitAdamSign, 1.0f), 3 * AccumulatedError(CodecId::kRotatedSign, 1.0f));
}

TEST(AccumulatedError, IsManyTimesLargerWithoutFeedback) {
  for (CodecId codec : {CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4, CodecId::kInt4}) {
    EXPECT_GE(AccumulatedError(codec, 0.0f), 5 * AccumulatedError(codec, 1.0f)) << core::CodecName(codec);
  }
}

}  // namespace
}  // namespace causeway::codecs
