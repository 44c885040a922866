// Figures of a round that its merge measures, against the same in long double; and what follows from it of planted
// gradients.
#include "server/merge/round_figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "server/status/outer_gradients.h"
#include "tests/server/merge/merge_replay.h"

namespace causeway::server {
namespace {

using core::CodecId;

struct Naive {
  long double gg = 0, gv = 0, vv = 0, ss = 0;  // ss: Σ (g + μ v_t)²
};

Naive NaiveOf(float mu, std::span<const float> g, std::span<const float> v) {
  Naive sums;
  for (size_t i = 0; i < g.size(); ++i) {
    const long double gradient = g[i], momentum = v[i], factor = mu;
    const long double step = gradient + factor * (factor * momentum + gradient);
    sums.gg += gradient * gradient;
    sums.gv += gradient * momentum;
    sums.vv += momentum * momentum;
    sums.ss += step * step;
  }
  return sums;
}

std::vector<float> Gaussian(uint64_t seed, size_t count, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

void ExpectNear(const StepProducts& sums, const Naive& naive) {
  const auto scale = static_cast<double>(std::sqrt(naive.gg) * std::sqrt(naive.vv));
  EXPECT_NEAR(sums.gg / static_cast<double>(naive.gg), 1, 1e-6);
  EXPECT_NEAR(sums.vv / static_cast<double>(naive.vv), 1, 1e-6);
  EXPECT_NEAR(sums.gv / scale, static_cast<double>(naive.gv) / scale, 1e-6);
}

TEST(MeasuredOuterStep, IsTheOuterStepAndHasTheProductsOfAllMagnitudes) {
  const size_t count = 2 * 2048 + 37;
  for (float mu : {0.9f, 0.5f, 0.001f, 0.0f}) {
    for (const auto& [g_scale, v_scale] : std::vector<std::pair<double, double>>{
             {1e-3, 1e-2}, {1, 1}, {1e-25, 1e-25}, {1e-30, 1e-3}, {0x1p97, 0x1p98}, {0x1p97, 1e-3}, {1e-3, 0x1p97}}) {
      SCOPED_TRACE(testing::Message() << "momentum " << mu << ", scales " << g_scale << " and " << v_scale);
      const std::vector<float> g = Gaussian(1, count, g_scale);
      const std::vector<float> before = Gaussian(2, count, v_scale);
      std::vector<float> v = before, w = Gaussian(3, count, 1), expected_v = v, expected_w = w;
      const StepProducts sums = MeasuredOuterStep({0.7f, mu}, g, v, w);
      core::OuterStep({0.7f, mu}, g, expected_v, expected_w);
      EXPECT_EQ(v, expected_v);
      EXPECT_EQ(w, expected_w);
      const Naive naive = NaiveOf(mu, g, before);
      if (g_scale > 1e20 * v_scale) {  // v is lost beside g: its products are nothing beside Σ g²
        EXPECT_NEAR(sums.gg / static_cast<double>(naive.gg), 1, 1e-6);
        EXPECT_LT(std::abs(sums.gv) / sums.gg, 1e-6 / std::max(mu, 0x1p-8f));
        EXPECT_LT(sums.vv / sums.gg, 1e-6);
      } else {
        ExpectNear(sums, naive);
      }
    }
  }
}

TEST(MeasuredOuterStep, OfZerosHasZeros) {
  std::vector<float> g(4096, 0.0f), v(4096, 0.0f), w(4096, 1.0f);
  EXPECT_EQ(MeasuredOuterStep({0.7f, 0.9f}, g, v, w), StepProducts{});
}

TEST(TileSample, OfALargeFragmentIsOneTileInManyAndEveryTileInTurn) {
  const int64_t tiles = 16 * 40 + 3;
  const core::Fragment fragment = MakeFragment({tiles * kTileValues});
  std::vector<int> taken(tiles, 0);
  for (core::Version base = 0; base < 40; ++base) {
    const TileSample sample(fragment, base);
    int64_t in_round = 0;
    for (int64_t i = 0; i < tiles; ++i) {
      const auto part = sample.Of({i * kTileUnits, kTileValues});
      if (!part) continue;
      EXPECT_EQ(part->first_unit, i * kTileUnits);
      EXPECT_EQ(part->values, core::kUnitValues);
      ++taken[i];
      ++in_round;
    }
    EXPECT_GE(in_round, 16);
    EXPECT_LE(in_round, 17);
  }
  EXPECT_EQ(taken, std::vector<int>(tiles, 1));
}

// Padding of rotated blocks counts as the codec has it: nothing beside 1e-3.
TEST(Merge, CosinesAreThoseOfEachContributionToTheMean) {
  const core::Fragment fragment = MakeFragment({20'000, 300});
  const std::vector<float> shared = RandomPadded(fragment, 1, 0.5);
  std::vector<std::vector<float>> steps(3, shared);
  const std::vector<float> other = RandomPadded(fragment, 2, 0.5);
  for (size_t i = 0; i < shared.size(); ++i) {
    steps[1][i] = 2 * shared[i] + other[i];
    steps[2][i] = -shared[i];
  }
  const std::vector<double> weights = {5, 1, 2};
  for (CodecId up : {CodecId::kFloat32, CodecId::kInt8, CodecId::kRotatedLm4}) {
    const Round round = MakeRoundOf(fragment, steps, weights, Leg(up));
    for (CodecId down : {CodecId::kFloat32, CodecId::kRotatedSign}) {
      const Result result = RunMerge(fragment, round, {{0.7f, 0.9f}, Leg(down), 1.0f});
      ASSERT_EQ(result.cosines.size(), 3u);
      for (size_t m = 0; m < 3; ++m) {
        long double dx = 0, dd = 0, xx = 0;
        for (size_t i = 0; i < shared.size(); ++i) {
          const long double x = (5.0L * steps[0][i] + steps[1][i] + 2.0L * steps[2][i]) / 8;
          dx += steps[m][i] * x;
          dd += static_cast<long double>(steps[m][i]) * steps[m][i];
          xx += x * x;
        }
        EXPECT_NEAR(result.cosines[m], static_cast<double>(dx / std::sqrt(dd * xx)), 0.01) << m;
      }
    }
  }
}

TEST(Merge, AZeroContributionHasNoCosine) {
  const core::Fragment fragment = MakeFragment({5000});
  const std::vector<float> step = RandomPadded(fragment, 1, 0.5);
  const Round round = MakeRoundOf(fragment, {step, std::vector<float>(step.size(), 0.0f)}, {1, 1}, Leg(CodecId::kInt4));
  const Result result = RunMerge(fragment, round, {{0.7f, 0.9f}, Leg(CodecId::kInt4), 1.0f});
  EXPECT_NEAR(result.cosines.at(0), 1, 1e-6);
  EXPECT_TRUE(std::isnan(result.cosines.at(1)));
}

struct Planted {
  double rho;
  float mu;
  CodecId down;
};

class PlantedGradients : public ::testing::TestWithParam<Planted> {};

// g_t = ρ g_{t−1} + √(1 − ρ²) ξ through the merge itself.
TEST_P(PlantedGradients, CorrelationAndAmplificationAreFound) {
  const auto [rho, mu, down] = GetParam();
  const core::Fragment fragment = MakeFragment({20'000});
  const MergeSettings settings = {.outer = {0.7f, mu}, .down = Leg(down)};
  FragmentState state;
  state.anchor.resize(fragment.padded_values());
  state.momentum.resize(fragment.padded_values());
  std::vector<float> gradient = Gaussian(1, 20'000, 1e-3);
  gradient.resize(fragment.padded_values(), 0.0f);
  OuterGradients gradients;
  double squared_amplifications = 0;
  for (int t = 0; t < 80; ++t) {
    const std::vector<float> noise = Gaussian(100 + t, 20'000, 1e-3 * std::sqrt(1 - rho * rho));
    for (size_t i = 0; i < noise.size(); ++i) gradient[i] = static_cast<float>(rho * gradient[i] + noise[i]);
    const Round round = MakeRoundOf(fragment, {gradient}, {1}, Leg(CodecId::kFloat32));
    const std::vector<float> before(state.momentum.begin(), state.momentum.end());
    std::vector<std::string> chunks;
    const MergeResult result =
        Merge(fragment, round.inputs, settings, state, [&](std::string chunk) { chunks.push_back(std::move(chunk)); });
    const StepProducts& products = result.products;
    gradients.Add(state.version, settings.outer, {products.gg, products.gv, products.vv});
    const Naive naive = NaiveOf(mu, DecodeAll(ParseAll(chunks), std::ssize(before)), before);
    const OuterGradientFigures figures = gradients.Figures();
    ASSERT_NEAR(*figures.norm / static_cast<double>(std::sqrt(naive.gg)), 1, 1e-6);
    const auto amplification = static_cast<double>(std::sqrt(naive.ss / naive.gg));
    ASSERT_NEAR(*figures.amplification / amplification, 1, 1e-6) << t;
    if (t >= 64) squared_amplifications += amplification * amplification / 16;
    EXPECT_EQ(figures.correlation.has_value(), t > 0);
  }
  const OuterGradientFigures figures = gradients.Figures();
  EXPECT_NEAR(*figures.correlation, rho, 0.02);
  EXPECT_NEAR(*figures.predicted_amplification / std::sqrt(squared_amplifications), 1, 0.03);
  EXPECT_NEAR(*figures.effective_lr, 0.7 * (1 + mu / (1 - mu * rho)), 0.1);
}

INSTANTIATE_TEST_SUITE_P(OfSeveralCorrelations, PlantedGradients,
                         ::testing::Values(Planted{-0.5, 0.9f, CodecId::kFloat32}, Planted{0, 0.9f, CodecId::kFloat32},
                                           Planted{0.3, 0.9f, CodecId::kFloat32}, Planted{0.9, 0.9f, CodecId::kFloat32},
                                           Planted{0.3, 0.5f, CodecId::kFloat32}, Planted{0.3, 0.0f, CodecId::kFloat32},
                                           Planted{0.9, 0.9f, CodecId::kInt8}, Planted{0, 0.9f, CodecId::kInt4}));

}  // namespace
}  // namespace causeway::server
