#include "server/merge/radial_directional.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/digest.h"
#include "core/limits.h"
#include "server/merge/contribution.h"
#include "tests/server/merge/merge_replay.h"
#include "tests/server/merge/radial_by_specification.h"

namespace causeway::server {
namespace {

using core::CodecId;
using core::MergeRule;
using core::TensorKind;

constexpr core::OuterParameters kOuter = {0.7f, 0.9f};
constexpr core::OuterParameters kPlain = {1.0f, 0.0f};  // W ← W − g

MergeSettings Radial(CodecId down, float feedback = 0, core::OuterParameters outer = kOuter) {
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
