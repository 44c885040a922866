// The errors of codecs that remain with error feedback. A fixed signal, Student-t3, comes with fresh noise of the same
// norm each round; all that was sent is held against all that was to be sent.
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

struct Way {
  CodecId codec;
  float beta;
};

// One way of sending what is to be sent, round by round.
class Sender {
 public:
  explicit Sender(const Way& way)
      : fragment_(core::FragmentMap({{"t", {kValues}}}, {{0}}).fragment(0)),
        plan_(PlanChunks(fragment_, {way.codec, {}, 1})),
        feedback_(fragment_.padded_values(), way.beta, &pool_),
        decoded_(kValues) {}

  void Send(std::span<const float> input) {
    const auto chunks = feedback_.Encode(plan_, input);
    ASSERT_TRUE(chunks.ok()) << chunks.status();
    feedback_.Admit();
    for (const core::Bytes& chunk : *chunks) {
      const auto view = ChunkView::Parse(chunk);
      const std::span<float> sum = std::span(decoded_).subspan(view->span().first_value(), view->span().values);
      view->DecodeAdd(view->span().first_unit, 1.0f, sum);
    }
  }
  std::span<const float> decoded() const { return decoded_; }

 private:
  const core::Fragment fragment_;
  const std::vector<ChunkSpan> plan_;
  core::BufferPool pool_;
  ErrorFeedback feedback_;
  std::vector<float> decoded_;
};

// One error for each way, all on the same inputs.
std::vector<double> AccumulatedErrors(const std::vector<Way>& ways) {
  std::vector<Sender> senders(ways.begin(), ways.end());
  const std::vector<float> signal = ValuesOf(Shape::kStudentT3, kValues, 1);
  std::vector<float> inputs(kValues);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> input = ValuesOf(Shape::kStudentT3, kValues, 2 + round);
    const double same = Norm(signal) / Norm(input);
    for (int64_t i = 0; i < kValues; ++i) {
      input[i] = static_cast<float>(signal[i] + same * input[i]);
      inputs[i] += input[i];
    }
    for (Sender& sender : senders) sender.Send(input);
  }
  std::vector<double> errors;
  for (size_t w = 0; w < ways.size(); ++w) {
    errors.push_back(RelativeDistance(senders[w].decoded(), inputs));
    std::printf("%-16s  beta %g  %.5f\n", core::CodecName(ways[w].codec), ways[w].beta, errors.back());
  }
  return errors;
}

TEST(AccumulatedError, OfRotatedCodecsIsSmallThoughTheTailIsHeavy) {
  const std::vector<double> errors = AccumulatedErrors({{CodecId::kRotatedSign, 1}, {CodecId::kRotatedLm4, 1}});
  EXPECT_LE(errors[0], 0.065);
  EXPECT_LE(errors[1], 0.0032);
}

// One scale for everything is far too large for most values, which then swing around what they should be.
TEST(AccumulatedError, OfOneScaleForAllIsSeveralTimesThatOfRotatedBlocks) {
  const std::vector<double> errors = AccumulatedErrors({{CodecId::kOnebitAdamSign, 1}, {CodecId::kRotatedSign, 1}});
  EXPECT_GE(errors[0], 3 * errors[1]);
}

TEST(AccumulatedError, IsManyTimesLargerWithoutFeedback) {
  std::vector<Way> ways;
  for (CodecId codec : {CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4, CodecId::kInt4}) {
    ways.push_back({codec, 0});
    ways.push_back({codec, 1});
  }
  const std::vector<double> errors = AccumulatedErrors(ways);
  for (size_t w = 0; w < ways.size(); w += 2) EXPECT_GE(errors[w], 5 * errors[w + 1]) << core::CodecName(ways[w].codec);
}

}  // namespace
}  // namespace causeway::codecs
