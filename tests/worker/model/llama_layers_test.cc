#include "worker/model/llama_layers.h"

#include <numeric>

#include "tests/worker/model/test_values.h"
#include "worker/device/vector_math.h"

namespace causeway::worker {
namespace {

constexpr int64_t kRows = 5;
constexpr int64_t kIn = 7;
constexpr int64_t kOut = 11;

TEST(VectorMath, FastExpIsWithin2e7OfExp) {
  for (double x = -86; x < 86; x += 0.0137) {
    const float argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    EXPECT_NEAR(FastExp(argument) / exact, 1, 2e-7) << argument;
  }
  EXPECT_EQ(FastExp(0.0f), 1.0f);
  EXPECT_LT(FastExp(-1000.0f), 1e-37f);
  EXPECT_TRUE(std::isnan(FastExp(std::nanf(""))));
}

TEST(Linear, MatchesItsDefinition) {
  const std::vector<float> x = RandomValues(1, kRows * kIn);
  const std::vector<float> w = RandomValues(2, kOut * kIn);
  std::vector<float> y(kRows * kOut);
  Linear(kRows, kIn, kOut, x.data(), w.data(), y.data());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t o = 0; o < kOut; ++o) {
      EXPECT_NEAR(y[row * kOut + o], Dot({&x[row * kIn], kIn}, {&w[o * kIn], kIn}), 1e-6);
    }
  }
}

TEST(Linear, InputAndWeightGradientsMatchDifferencesEachCalledAlone) {
  std::vector<float> x = RandomValues(1, kRows * kIn);
  std::vector<float> w = RandomValues(2, kOut * kIn);
  const std::vector<float> dy = RandomValues(3, kRows * kOut);
  std::vector<float> y(dy.size()), dx(x.size()), dw(w.size());
  const auto f = [&] {
    Linear(kRows, kIn, kOut, x.data(), w.data(), y.data());
    return Dot(y, dy);
  };
  LinearBackwardInput(kRows, kIn, kOut, dy.data(), w.data(), dx.data());
  ExpectGradient("dx", dx, x, f);
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), dw.data());
  ExpectGradient("dw", dw, w, f);
}

TEST(Linear, WeightGradientsAddUpOverCalls) {
  const std::vector<float> x = RandomValues(1, kRows * kIn), dy = RandomValues(3, kRows * kOut);
  std::vector<float> once(kOut * kIn), twice(kOut * kIn);
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), once.data());
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), twice.data());
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), twice.data());
  for (size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]);
}

TEST(RmsNorm, ScalesEachRowToMeanSquareOne) {
  const std::vector<float> x = {3, 4, 0, 0, 1, 1, 1, 1};
  const std::vector<float> w = {1, 1, 1, 2};
  std::vector<float> y(8), scale(2);
  RmsNorm(2, 4, 0.0, x.data(), w.data(), y.data(), scale.data());
  EXPECT_FLOAT_EQ(y[0], 3 / 2.5f);
  EXPECT_FLOAT_EQ(y[1], 4 / 2.5f);
  EXPECT_FLOAT_EQ(y[7], 2);
}

TEST(RmsNorm, InputAndWeightGradientsMatchDifferencesEachCalledAlone) {
  std::vector<float> x = RandomValues(1, kRows * kIn);
  std::vector<float> w = RandomValues(2, kIn);
  const std::vector<float> dy = RandomValues(3, kRows * kIn);
  std::vector<float> y(dy.size()), scale(kRows), dx(x.size()), dw(w.size());
  const auto f = [&] {
    RmsNorm(kRows, kIn, 1e-5, x.data(), w.data(), y.data(), scale.data());
    return Dot(y, dy);
  };
  f();
  RmsNormBackwardInputAdd(kRows, kIn, dy.data(), x.data(), w.data(), scale.data(), dx.data());
  RmsNormBackwardWeight(kRows, kIn, dy.data(), x.data(), scale.data(), dw.data());
  ExpectGradient("dx", dx, x, f);
  ExpectGradient("dw", dw, w, f);
}

TEST(Rope, RotatesHalvesByPositionAsHuggingFaceDoes) {
  const Rope rope(3, RopeFrequencies(4, 100.0, {}));
  std::vector<float> x(3 * 4);
  std::iota(x.begin(), x.end(), 1.0f);
  const std::vector<float> before = x;
  rope.Rotate(3, 1, x.data());
  for (int position = 0; position < 3; ++position) {
    for (int i = 0; i < 2; ++i) {
      const double angle = position * std::pow(100.0, -2.0 * i / 4);
      const double first = before[position * 4 + i], second = before[position * 4 + i + 2];
      EXPECT_NEAR(x[position * 4 + i], first * std::cos(angle) - second * std::sin(angle), 1e-5);
      EXPECT_NEAR(x[position * 4 + i + 2], second * std::cos(angle) + first * std::sin(angle), 1e-5);
    }
  }
}

// Numbers of transformers 5.23, ROPE_INIT_FUNCTIONS["llama3"], in float32: short waves, waves between, long waves.
TEST(Rope, ScaledFrequenciesAreThoseOfTransformers) {
  const std::vector<double> small = RopeFrequencies(16, 1e4, core::RopeScaling{8, 1, 4, 64});
  const double expected[8] = {1.0,
                              0.24438458681106567,
                              0.013042256236076355,
                              0.0039528473280370235,
                              0.0012499999720603228,
                              0.00039528473280370235,
                              0.0001250000059371814,
                              3.9528473280370235e-05};
  ASSERT_EQ(small.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(small[i] / expected[i], 1, 5e-6) << i;
  const std::vector<double> llama_3_2 = RopeFrequencies(64, 5e5, core::RopeScaling{32, 1, 4, 8192});
  ASSERT_EQ(llama_3_2.size(), 32u);
  EXPECT_NEAR(llama_3_2[14] / 0.0032114461064338684, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[15] / 0.0012905480107292533, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[16] / 0.000429556705057621, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[17] / 9.708286233944818e-05, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[18] / 1.9461638657958247e-05, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[31] / 9.418306490260875e-08, 1, 5e-6);
}

TEST(Rope, InputGradientMatchesDifferences) {
  const Rope rope(5, RopeFrequencies(6, 10000.0, {}));
  std::vector<float> x = RandomValues(1, 10 * 2 * 6);  // two sequences, two heads
  std::vector<float> dx = RandomValues(2, x.size());
  const std::vector<float> dy = dx;
  const auto f = [&] {
    std::vector<float> y = x;
    rope.Rotate(10, 2, y.data());
    return Dot(y, dy);
  };
  rope.RotateBackwardInput(10, 2, dx.data());
  ExpectGradient("dx", dx, x, f);
}

TEST(SwiGlu, InputGradientsMatchDifferences) {
  std::vector<float> gate = RandomValues(1, 37, 3.0), up = RandomValues(2, 37);
  const std::vector<float> dy = RandomValues(3, 37);
  std::vector<float> y(37), dgate(37), dup(37);
  const auto f = [&] {
    SwiGlu(37, gate.data(), up.data(), y.data());
    return Dot(y, dy);
  };
  EXPECT_NEAR(
      f(),
      [&] {
        double sum = 0;
        for (int i = 0; i < 37; ++i) sum += gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i] * dy[i];
        return sum;
      }(),
      1e-5);
  SwiGluBackwardInput(37, dy.data(), gate.data(), up.data(), dgate.data(), dup.data());
  ExpectGradient("dgate", dgate, gate, f);
  ExpectGradient("dup", dup, up, f);
}

TEST(Embedding, WeightGradientAddsRowsOfRepeatedTokens) {
  const std::vector<int32_t> tokens = {2, 0, 2};
  std::vector<float> w = RandomValues(1, 4 * 3);
  const std::vector<float> dy = RandomValues(2, 3 * 3);
  std::vector<float> y(9), dw(12);
  const auto f = [&] {
    Embedding(tokens, 3, w.data(), y.data());
    return Dot(y, dy);
  };
  EmbeddingBackwardWeight(tokens, 3, dy.data(), dw.data());
  ExpectGradient("dw", dw, w, f);
  EXPECT_EQ(dw[3], 0.0f);  // token 1 does not occur
}

TEST(CrossEntropy, UniformLogitsCostTheLogarithmOfTheVocabulary) {
  const std::vector<int32_t> targets = {3, 0};
  std::vector<float> logits(2 * 10, 5.0f);
  EXPECT_NEAR(CrossEntropy(targets, 10, logits.data()), 2 * std::log(10.0), 1e-6);
  EXPECT_NEAR(logits[7], 0.1f, 1e-7);
}

TEST(CrossEntropy, InputGradientMatchesDifferences) {
  const std::vector<int32_t> targets = {3, 0, 3};
  std::vector<float> logits = RandomValues(1, 3 * 10, 4.0);
  std::vector<float> gradient = logits;
  const auto f = [&] {
    std::vector<float> copy = logits;
    return 0.5 * CrossEntropy(targets, 10, copy.data());
  };
  CrossEntropy(targets, 10, gradient.data());
  CrossEntropyBackwardInput(targets, 10, 0.5f, gradient.data());
  ExpectGradient("dlogits", gradient, logits, f);
}

}  // namespace
}  // namespace causeway::worker
