// Figures of a round that its merge measures, against the same in long double; and what follows from it of planted
// gradients.
#include "server/merge/round_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "core/digest.h"
#include "core/limits.h"
#include "server/merge/contribution.h"
#include "server/status/outer_gradients.h"
#include "tests/server/merge/merge_replay.h"
#include "tests/server/merge/radial_by_specification.h"

namespace causeway::server {
namespace {

using core::CodecId;
using core::MergeRule;
using core::TensorKind;

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

constexpr core::OuterParameters kOuterOfFigures = {0.7f, 0.9f};
constexpr core::OuterParameters kPlain = {1.0f, 0.0f};  // W ← W − g

MergeSettings Radial(CodecId down, float feedback = 0, core::OuterParameters outer = kOuterOfFigures) {
  return {.outer = outer, .down = Leg(down), .feedback_down = feedback, .rule = MergeRule::kRadialDirectional};
}

MergeSettings Average(MergeSettings settings) {
  settings.rule = MergeRule::kAverage;
  return settings;
}

// Steps of a fragment's one tensor.
std::vector<float> Padded(const std::vector<float>& values) {
  std::vector<float> padded = values;
  padded.resize(core::UnitsFor(std::ssize(values)) * core::kUnitValues, 0.0f);
  return padded;
}

std::vector<float> Scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

// The merged step g of a fragment, float32 on the way down.
std::vector<float> Step(const core::Fragment& fragment, const Round& round, MergeRule rule) {
  MergeSettings settings = Radial(CodecId::kFloat32, 0, kPlain);
  settings.rule = rule;
  const size_t padded = fragment.padded_values();
  FragmentState state = {0, core::AlignedFloats(padded), core::AlignedFloats(padded), {}};
  Merge(fragment, round.inputs, settings, state, [](std::string) {});
  std::vector<float> step;
  for (float value : state.anchor) step.push_back(-value);
  return step;
}

// The same for sites of equal weights with one tensor, float32 on both legs.
std::vector<float> StepOf(const std::vector<std::vector<float>>& steps, MergeRule rule = MergeRule::kRadialDirectional,
                          std::vector<double> weights = {}) {
  const core::Fragment fragment = MakeFragment({std::ssize(steps[0])});
  std::vector<std::vector<float>> padded;
  for (const std::vector<float>& step : steps) padded.push_back(Padded(step));
  weights.resize(steps.size(), 1.0);
  std::vector<float> g = Step(fragment, MakeRoundOf(fragment, padded, weights, Leg(CodecId::kFloat32)), rule);
  g.resize(steps[0].size());
  return g;
}

class RadialDirectionalFrom : public ::testing::TestWithParam<CodecId> {};

TEST_P(RadialDirectionalFrom, AnyNumberOfSitesEqualsTheScalarReplay) {
  const core::Fragment fragment =
      MakeFragment(kSizes, {TensorKind::kMatrix, TensorKind::kMatrix, TensorKind::kEmbedding, TensorKind::kHead});
  for (int sites : {1, 2, 3, 7}) {
    const Round round = MakeRound(fragment, sites, Leg(GetParam()));
    for (CodecId down : {CodecId::kFloat32, CodecId::kInt4, CodecId::kRotatedLm4}) {
      SCOPED_TRACE(testing::Message() << sites << " sites, down " << core::CodecName(down));
      const MergeSettings settings = Radial(down, 1.0f);
      const Result result = RunMerge(fragment, round, settings);
      ExpectEqualsReplay(fragment, round, settings, result);
      EXPECT_EQ(result.digest == RunMerge(fragment, round, Average(settings)).digest, sites == 1);
    }
  }
}

// In whole blocks, where a rotation keeps the length to the last value.
TEST_P(RadialDirectionalFrom, EqualsTheFormulaInDoubleTensorByTensor) {
  const core::Fragment fragment = MakeFragment({20'480, 256, 4096 + 512});
  std::vector<std::vector<float>> steps;
  for (int m = 0; m < 4; ++m) {
    steps.push_back(RandomPadded(fragment, 50 + m, std::pow(5.0, m)));
    const std::vector<float> common = RandomPadded(fragment, 49, std::pow(5.0, m));
    for (size_t i = 0; i < common.size(); ++i) steps[m][i] += common[i];
  }
  const Round round = MakeRoundOf(fragment, steps, {4, 3, 2, 1}, Leg(GetParam()));
  const std::vector<float> g = Step(fragment, round, MergeRule::kRadialDirectional);
  const std::vector<float> average = Step(fragment, round, MergeRule::kAverage);
  std::vector<float> lambda;
  for (const MergeInput& input : round.inputs) lambda.push_back(input.weight);
  for (const core::TensorPlace& tensor : fragment.tensors) {
    const auto of_tensor = [&](const std::vector<float>& values) {
      return std::span(values).subspan(tensor.first_unit * core::kUnitValues, tensor.values);
    };
    std::vector<std::vector<float>> d;
    double length = 0;
    for (const MergeInput& input : round.inputs) {
      const std::vector<float> decoded =
          DecodeAll({input.chunks.begin(), input.chunks.end()}, fragment.padded_values());
      d.emplace_back(of_tensor(decoded).begin(), of_tensor(decoded).end());
      length += input.weight * Norm(d.back());
    }
    const std::vector<double> expected = RadialMean(d, lambda);
    const double tolerance = 1e-5 * length / std::sqrt(static_cast<double>(tensor.values));
    for (int64_t i = 0; i < tensor.values; ++i) ASSERT_NEAR(of_tensor(g)[i], expected[i], tolerance) << i;
    EXPECT_NEAR(Norm(of_tensor(g)) / length, 1, 1e-5);
    EXPECT_LT(Norm(of_tensor(average)) / length, 0.95);
  }
}

TEST(RadialDirectionalFactor, ShortensTheLengthAndTurnsNoDirectionAndTheAverageIsOfScaledSteps) {
  const core::Fragment fragment = MakeFragment({6000});
  std::vector<std::vector<float>> steps;
  for (int m = 0; m < 3; ++m) steps.push_back(RandomPadded(fragment, 7 + m, 1));
  Round round = MakeRoundOf(fragment, steps, {1, 2, 1}, Leg(CodecId::kFloat32));
  const std::vector<float> whole = Step(fragment, round, MergeRule::kRadialDirectional);
  round.inputs[1].factor = 0.25F;
  const std::vector<float> radial = Step(fragment, round, MergeRule::kRadialDirectional);
  const double n[] = {Norm(std::span(steps[0])), Norm(std::span(steps[1])), Norm(std::span(steps[2]))};
  const double ratio = (n[0] + 0.5 * n[1] + n[2]) / (n[0] + 2 * n[1] + n[2]);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(radial[i], ratio * whole[i], 1e-5) << i;
  const std::vector<float> average = Step(fragment, round, MergeRule::kAverage);
  steps[1] = Scaled(steps[1], 0.25F);
  const Round scaled = MakeRoundOf(fragment, steps, {1, 2, 1}, Leg(CodecId::kFloat32));
  EXPECT_EQ(average, Step(fragment, scaled, MergeRule::kAverage)) << "a power of two: the same bits";
}

TEST_P(RadialDirectionalFrom, OrderInWhichChunksArriveDoesNotMatter) {
  const core::Fragment fragment = MakeFragment();
  Round round = MakeRound(fragment, 3, Leg(GetParam()));
  const Result in_order = RunMerge(fragment, round, Radial(CodecId::kInt4));
  for (size_t first = 0; first < round.chunks[0].size(); ++first) {
    std::vector<std::vector<codecs::ChunkView>> views;
    std::vector<std::unique_ptr<Contribution>> contributions;
    for (const std::vector<std::string>& chunks : round.chunks) {
      contributions.push_back(std::make_unique<Contribution>(codecs::PlanChunks(fragment, Leg(GetParam()))));
      for (size_t i = chunks.size(); i > 0; --i) {
        ASSERT_TRUE(contributions.back()->Add(chunks[(first + i) % chunks.size()]).ok());
      }
      views.push_back(contributions.back()->Views());
    }
    for (size_t m = 0; m < views.size(); ++m) round.inputs[m].chunks = views[m];
    EXPECT_EQ(RunMerge(fragment, round, Radial(CodecId::kInt4)).digest, in_order.digest) << first;
  }
}

// CAUSEWAY_SIMD is read once, so each target has a process of its own.
TEST_P(RadialDirectionalFrom, EveryInstructionSetGivesTheSameBits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto digest = [] {
    const core::Fragment fragment = MakeFragment({5, 20'000, 4097});
    const Round round = MakeRound(fragment, 3, Leg(GetParam()));
    return core::DigestText(
        RunMerge(fragment, round, Radial(GetParam() == CodecId::kOnebitAdamSign ? CodecId::kInt4 : GetParam())).digest);
  };
  const std::string expected = digest();
  for (codecs::Target target : codecs::kAllTargets) {
    if (!codecs::Supported(target)) continue;
    setenv("CAUSEWAY_SIMD", codecs::TargetName(target), 1);
    EXPECT_EXIT(
        (std::fprintf(stderr, "%s %s", codecs::TargetName(codecs::ActiveTarget()), digest().c_str()), std::exit(0)),
        testing::ExitedWithCode(0), std::string(codecs::TargetName(target)) + " " + expected);
    unsetenv("CAUSEWAY_SIMD");
  }
}

INSTANTIATE_TEST_SUITE_P(Up, RadialDirectionalFrom, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return std::string(core::CodecName(test.param)); });

TEST(RadialDirectional, BoundariesOfContributionsDoNotMatter) {
  const core::Fragment fragment = MakeFragment();
  for (CodecId up : {CodecId::kInt8, CodecId::kRotatedLm4, CodecId::kTopk}) {
    const Result planned = RunMerge(fragment, MakeRound(fragment, 3, Leg(up)), Radial(CodecId::kInt4));
    for (int64_t units_per_chunk : {1, 3, 5}) {
      const Result other = RunMerge(fragment, MakeRound(fragment, 3, Leg(up), units_per_chunk), Radial(CodecId::kInt4));
      EXPECT_EQ(other.digest, planned.digest) << units_per_chunk;
    }
  }
}

TEST(RadialDirectional, UpdateOfSeveralChunksOfATensorEqualsTheReplay) {
  const core::Fragment fragment = MakeFragment({10, 600'000, 4097});  // one float32 chunk, eight, then one
  for (CodecId up : {CodecId::kFloat32, CodecId::kInt4, CodecId::kRotatedLm2}) {
    const Round round = MakeRound(fragment, 2, Leg(up));
    const Result result = RunMerge(fragment, round, Radial(CodecId::kFloat32));
    EXPECT_EQ(result.chunks.size(), 10u);
    ExpectEqualsReplay(fragment, round, Radial(CodecId::kFloat32), result);
  }
}

TEST(RadialDirectional, OneSiteGivesExactlyItsStep) {
  const std::vector<float> d = {0.1f, -3e-30f, 7e20f, 1.0f / 3};
  EXPECT_EQ(StepOf({d}), d);
}

TEST(RadialDirectional, EqualStepsGiveThatStep) {
  const std::vector<float> d = {0.1f, -3.0f, 70.0f, 1.0f / 3};
  for (const std::vector<float>& g : {StepOf({d, d}), StepOf({d, d, d}, MergeRule::kRadialDirectional, {1, 2, 3})}) {
    for (size_t i = 0; i < d.size(); ++i) EXPECT_NEAR(g[i] / d[i], 1, 3e-7) << i;
  }
}

TEST(RadialDirectional, StepsAtRightAnglesGiveTheirMeanLengthHalfwayBetween) {
  const std::vector<float> g = StepOf({{3, 0}, {0, 1}});
  EXPECT_NEAR(g[0], 2 * std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(g[1], 2 * std::sqrt(0.5), 1e-6);
  const std::vector<float> weighted = StepOf({{3, 0}, {0, 1}}, MergeRule::kRadialDirectional, {3, 1});  // along (3, 1)
  EXPECT_NEAR(weighted[0], 2.5 * 3 / std::sqrt(10.0), 1e-6);
  EXPECT_NEAR(weighted[1], 2.5 / std::sqrt(10.0), 1e-6);
}

TEST(RadialDirectional, OppositeStepsGiveTheirAverage) {
  const std::vector<float> d = {0.1f, -3.0f, 70.0f, 1.0f / 3};
  EXPECT_EQ(StepOf({d, Scaled(d, -1)}), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(StepOf({d, Scaled(d, -3)}), StepOf({d, Scaled(d, -3)}, MergeRule::kAverage));
}

TEST(RadialDirectional, MeanDirectionIsDegenerateBelowItsLimitOnly) {
  const auto along_second = [](float part) { return StepOf({{1, part}, {-1, part}})[1]; };
  EXPECT_NEAR(along_second(0x1.1p-10f), 1, 1e-5);
  EXPECT_EQ(along_second(0x1.fp-11f), 0x1.fp-11f);
}

TEST(RadialDirectional, StepOfZeroShortensTheMeanAndHasNoDirection) {
  const std::vector<float> d = {0.1f, -3.0f}, zero = {0, 0};
  EXPECT_EQ(StepOf({d, zero}), StepOf({d, zero}, MergeRule::kAverage));
  EXPECT_EQ(StepOf({zero, zero}), zero);
  const std::vector<float> g = StepOf({{3, 0}, {0, 0}, {0, 3}});
  EXPECT_NEAR(g[0], 2 * std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(g[1], 2 * std::sqrt(0.5), 1e-6);
}

TEST(RadialDirectional, StepBelowTheCodecsRangeCountsAsZero) {
  const std::vector<float> g = StepOf({{3, 0}, {0x1p-120f, 0x1p-149f}, {0, 3}});
  EXPECT_EQ(g, StepOf({{3, 0}, {0, 0}, {0, 3}}));
}

TEST(RadialDirectional, AbsurdStepsAreAveragedAndStayFinite) {
  const float huge = std::nextafter(core::kMaxMagnitude, 0.0f);
  EXPECT_EQ(StepOf({{huge, huge}, {-huge, huge / 2}}), StepOf({{huge, huge}, {-huge, huge / 2}}, MergeRule::kAverage));
  EXPECT_EQ(StepOf({{huge / 4, 0}, {0, 0x1p-60f}}), StepOf({{huge / 4, 0}, {0, 0x1p-60f}}, MergeRule::kAverage));
}

TEST(RadialDirectional, EmbeddingsAreAveraged) {
  const core::Fragment fragment = MakeFragment({5000, 300}, {TensorKind::kEmbedding, TensorKind::kMatrix});
  const Round round = MakeRound(fragment, 3, Leg(CodecId::kInt4));
  const std::vector<float> radial = Step(fragment, round, MergeRule::kRadialDirectional);
  const std::vector<float> average = Step(fragment, round, MergeRule::kAverage);
  const auto matrix = radial.begin() + 2 * core::kUnitValues;
  EXPECT_TRUE(std::equal(radial.begin(), matrix, average.begin()));
  EXPECT_FALSE(std::equal(matrix, radial.end(), average.begin() + 2 * core::kUnitValues));
}

TEST(RadialDirectional, SiteWithoutWeightDoesNotCount) {
  const std::vector<float> with = StepOf({{3, 0}, {0, 1}, {5, 5}}, MergeRule::kRadialDirectional, {1, 1, 1e-300});
  EXPECT_EQ(with, StepOf({{3, 0}, {0, 1}}));
  for (int i = 1; i < 50; ++i) {  // 1 / ‖d‖ · ‖d‖ in float is not 1 for some of them
    const std::vector<float> d = {0.1f, static_cast<float>(i) / 7};
    EXPECT_EQ(StepOf({d, Scaled(d, -5)}, MergeRule::kRadialDirectional, {1, 1e-300}), d) << i;
  }
}

TEST(RadialDirectional, IncompleteContributionIsTheCallersBug) {
  const core::Fragment fragment = MakeFragment({4096, 10, 10});
  Round round = MakeRound(fragment, 2, Leg(CodecId::kInt4));
  round.views[1].pop_back();
  round.inputs[1].chunks = round.views[1];
  EXPECT_DEATH(RunMerge(fragment, round, Radial(CodecId::kInt4)), "CHECK failed");
}

}  // namespace
}  // namespace causeway::server
