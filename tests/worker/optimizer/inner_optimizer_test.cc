#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/optimizer/sum_of_squares.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/optimizer/host_optimizer.h"
#include "worker/optimizer/momentum_exchange.h"
#include "worker/optimizer/onebit_adam.h"

namespace causeway::worker {
namespace {

const core::Manifest kManifest = {{"matrix", {2, 2}, core::TensorKind::kMatrix, 0},
                                  {"norm", {3}, core::TensorKind::kNorm, 0}};

core::InnerConfig Sgd() {
  return {.optimizer = core::InnerOptimizerKind::kSgd,
          .lr = 0.5,
          .warmup_steps = 0,
          .schedule = core::InnerSchedule::kConstant,
          .weight_decay = 0,
          .clip = 0};
}

TensorValues Filled(float value) {
  TensorValues values(kManifest);
  for (int i = 0; i < values.size(); ++i) std::ranges::fill(values[i], value);
  return values;
}

// One step of a new optimizer.
absl::Status Take(const core::InnerConfig& config, core::Step t, const TensorValues& gradients,
                  TensorValues& parameters) {
  core::RunConfig run;
  run.inner = config;
  offload::BusSchedule bus;
  HostOptimizer optimizer(run, kManifest, parameters, gradients, bus);
  ASSIGN_OR_RETURN(const double squares, SumOfSquares(t, kManifest, gradients));
  return optimizer.Step(t, squares);
}

TEST(LearningRate, WarmsUpLinearlyThenFallsAlongACosineToATenth) {
  const core::InnerConfig config{.lr = 1.0, .warmup_steps = 10, .schedule = core::InnerSchedule::kCosine};
  EXPECT_DOUBLE_EQ(LearningRate(config, 110, 1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(config, 110, 10), 1.0);
  EXPECT_NEAR(LearningRate(config, 110, 60), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(config, 110, 110), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(config, 110, 500), 0.1, 1e-12);
}

TEST(LearningRate, StaysWhenTheScheduleIsConstantOrTheEndUnknown) {
  core::InnerConfig config{.lr = 1.0, .warmup_steps = 10, .schedule = core::InnerSchedule::kCosine};
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 5000), 1.0);
  config.schedule = core::InnerSchedule::kConstant;
  EXPECT_DOUBLE_EQ(LearningRate(config, 110, 110), 1.0);
  config.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRate(config, 110, 1), 1.0);
}

TEST(RateSchedule, CountsStepsOrWithRunTokensTheTokensOfAllSites) {
  core::RunConfig run;
  run.steps = 110;
  run.inner = {.lr = 1.0, .warmup_steps = 10, .schedule = core::InnerSchedule::kCosine, .batch_size = 4};
  run.membership.min_sites = 3;
  run.llama.max_position_embeddings = 5;  // 60 tokens of all sites are a step
  RateSchedule rate(run);
  EXPECT_EQ(rate.At(7), LearningRate(run.inner, 110, 7));
  rate.MoveTo(600);
  EXPECT_EQ(rate.At(7), LearningRate(run.inner, 110, 7)) << "steps count";
  run.tokens = 60 * 50;
  rate.Change(run);
  EXPECT_EQ(rate.At(7), 1.0) << "the end of the warm-up, whatever the step";
  rate.MoveTo(30);
  EXPECT_DOUBLE_EQ(rate.At(8), 0.05);
  rate.MoveTo(60 * 30);
  EXPECT_NEAR(rate.At(9), 0.55, 1e-12);
  rate.MoveTo(60 * 80);
  EXPECT_NEAR(rate.At(10), 0.1, 1e-12);
}

TEST(InnerOptimizer, ClipsTheNormOverAllTensors) {
  core::InnerConfig config = Sgd();
  config.clip = 1.0;
  TensorValues parameters = Filled(0);
  TensorValues gradients = Filled(2);  // norm √(7·4)
  ASSERT_TRUE(Take(config, 1, gradients, parameters).ok());
  EXPECT_FLOAT_EQ(parameters[0][0], -0.5f / std::sqrt(7.0f));
  EXPECT_FLOAT_EQ(parameters[1][2], -0.5f / std::sqrt(7.0f));
}

TEST(InnerOptimizer, LeavesGradientsBelowTheClipAsTheyAre) {
  core::InnerConfig config = Sgd();
  config.clip = 100;
  TensorValues parameters = Filled(0);
  TensorValues gradients = Filled(0.3f);
  ASSERT_TRUE(Take(config, 1, gradients, parameters).ok());
  EXPECT_EQ(parameters[0][0], -0.5f * 0.3f);
}

TEST(InnerOptimizer, DecaysMatricesOnly) {
  core::InnerConfig config = Sgd();
  config.weight_decay = 0.5;
  TensorValues parameters = Filled(4);
  TensorValues gradients = Filled(0);
  ASSERT_TRUE(Take(config, 1, gradients, parameters).ok());
  EXPECT_EQ(parameters[0][0], 3.0f);
  EXPECT_EQ(parameters[1][0], 4.0f);
}

TEST(InnerOptimizer, NonFiniteGradientIsNamedAndChangesNothing) {
  for (const auto& [value, word] : {std::pair(std::nanf(""), "nan"), {HUGE_VALF, "inf"}, {-HUGE_VALF, "-inf"}}) {
    TensorValues parameters = Filled(1);
    TensorValues gradients = Filled(1);
    gradients[1][2] = value;
    core::InnerConfig config = Sgd();
    config.clip = 1;
    const absl::Status status = Take(config, 12, gradients, parameters);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), std::string("gradient of norm is ") + word + " at index 2 in step 12");
    for (int i = 0; i < parameters.size(); ++i) {
      for (float p : parameters[i]) EXPECT_EQ(p, 1.0f);
    }
  }
}

TEST(InnerOptimizer, LargestFloatsAreFinite) {
  core::InnerConfig config = Sgd();
  config.clip = 1;
  TensorValues parameters = Filled(0);
  TensorValues gradients = Filled(std::numeric_limits<float>::max());
  ASSERT_TRUE(Take(config, 1, gradients, parameters).ok());
  EXPECT_FLOAT_EQ(parameters[0][0], -0.5f / std::sqrt(7.0f));
}

TEST(InnerOptimizer, BiasCorrectionCountsItsOwnStepsNotTheRuns) {
  core::InnerConfig config = Sgd();
  config.optimizer = core::InnerOptimizerKind::kAdamW;
  TensorValues first = Filled(0), joiner = Filled(0);
  TensorValues gradients = Filled(0.01f);
  ASSERT_TRUE(Take(config, 1, gradients, first).ok());
  ASSERT_TRUE(Take(config, 1000, gradients, joiner).ok());
  EXPECT_EQ(first[0][0], joiner[0][0]);
  EXPECT_NEAR(first[0][0], -0.5, 1e-5);
}

constexpr double kBeta2 = 0.9;  // Δ is 10
constexpr double kAnything = -1;

core::InnerConfig Config(int64_t freeze_at = core::kAutoFreeze) {
  return {.beta2 = kBeta2, .onebit = {.freeze_at = freeze_at}};
}

// ‖v‖₁ of a v that started at zero and whose estimate without that bias is `unbiased`.
double Norm(int64_t taken, double unbiased) { return unbiased * (1 - std::pow(kBeta2, static_cast<double>(taken))); }

// Steps 1 to 200 with these estimates; the step that froze it, 0: none.
int64_t FrozenAt(double (*unbiased)(int64_t taken), int64_t warm_from = 0) {
  VarianceFreeze freeze(Config());
  for (int64_t taken = 1; taken <= 200; ++taken) freeze.Note(taken, taken > warm_from, Norm(taken, unbiased(taken)));
  return freeze.frozen_at();
}

TEST(VarianceFreezeTest, AGivenStepFreezesItAndNeedsNoNorm) {
  VarianceFreeze freeze(Config(7));
  EXPECT_FALSE(freeze.needs_norm());
  for (int64_t taken = 1; taken <= 6; ++taken) freeze.Note(taken, true, kAnything);
  EXPECT_FALSE(freeze.frozen());
  freeze.Note(7, true, kAnything);
  EXPECT_EQ(freeze.frozen_at(), 7);
  freeze.Note(8, true, kAnything);
  EXPECT_EQ(freeze.frozen_at(), 7);
}

TEST(VarianceFreezeTest, AConstantVarianceIsFrozenOnceBothEstimatesHaveSeenAllTheirSteps) {
  EXPECT_EQ(FrozenAt([](int64_t) { return 3.0; }), 20);
}

TEST(VarianceFreezeTest, ItWaitsForTheWarmupOfTheRate) {
  EXPECT_EQ(FrozenAt([](int64_t) { return 3.0; }, /*warm_from=*/50), 51);
}

TEST(VarianceFreezeTest, AVarianceThatGoesOnFallingOrGrowingIsNeverFrozen) {
  EXPECT_EQ(FrozenAt([](int64_t taken) { return std::pow(0.99, static_cast<double>(taken)); }), 0);
  EXPECT_EQ(FrozenAt([](int64_t taken) { return std::pow(1.01, static_cast<double>(taken)); }), 0);
}

TEST(VarianceFreezeTest, OneThatFallsLessAndLessIsFrozenWhereTenStepsKeepNinetySixPercent) {
  // 1 + 1/t: r = (1 + 1/t) / (1 + 1/(t − 10)) ≥ 0.96 from t = 21 on, with r = 0.9603….
  EXPECT_EQ(FrozenAt([](int64_t taken) { return 1 + 1 / static_cast<double>(taken); }), 21);
}

TEST(VarianceFreezeTest, NormsThatAreNotFiniteFreezeNothing) {
  EXPECT_EQ(FrozenAt([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); }), 0);
  EXPECT_EQ(FrozenAt([](int64_t) { return 0.0; }), 0);
}

TEST(VarianceFreezeTest, ARestoredOneDecidesAsTheOneThatWentOn) {
  const auto norm = [](int64_t taken) { return Norm(taken, 1 + 1 / static_cast<double>(taken)); };
  VarianceFreeze through(Config());
  for (int64_t taken = 1; taken <= 15; ++taken) through.Note(taken, true, norm(taken));
  VarianceFreeze restored(Config());
  restored.Restore(through.frozen_at(), through.ratio(), through.norms());
  for (int64_t taken = 16; taken <= 40; ++taken) {
    through.Note(taken, true, norm(taken));
    restored.Note(taken, true, norm(taken));
    ASSERT_EQ(through.frozen_at(), restored.frozen_at());
    ASSERT_EQ(through.ratio(), restored.ratio());
  }
  EXPECT_EQ(through.frozen_at(), 21);
}

TEST(VarianceFreezeTest, TheSumIsThatOfAllValues) {
  for (const size_t size : {0, 1, 15, 16, 17, 1000}) {
    const std::vector<float> values = RandomValues(1, size);
    double sum = 0;
    for (const float value : values) sum += std::fabs(value);
    EXPECT_NEAR(SumInLanes(values), sum, 1e-9) << size;
  }
}

const core::Manifest kTwoTensors = {
    {.name = "embedding", .shape = {100, 50}}, {.name = "norm", .shape = {3}}, {.name = "head", .shape = {40, 11}}};
constexpr int64_t kValues = 5443;
constexpr int64_t kOneBucket = int64_t{25} << 20;
constexpr int64_t kNoGradient = 77;  // a value whose variance is 0

std::vector<float> Variance() {
  std::vector<float> v(kValues, 0.25f);
  v[kNoGradient] = 0;
  return v;
}

std::vector<float> Momentum(int rank, int step) {
  std::vector<float> m = RandomValues(static_cast<uint64_t>(rank * 1000 + step), kValues);
  m[kNoGradient] = 0;
  return m;
}

// The ranks of a site, as threads, each with its exchange.
class Site {
 public:
  Site(int world, int64_t bucket_bytes) : ranks_(OverThreads(world)), variance_(Variance()) {
    for (const RankUnderTest& rank : ranks_) {
      exchanges_.push_back(std::make_unique<MomentumExchange>(
          kTwoTensors, TrainerRanks{.values = rank.collectives.get(), .timeout_s = 60}, variance_, bucket_bytes));
    }
  }

  int world() const { return static_cast<int>(ranks_.size()); }
  MomentumExchange& operator[](int rank) { return *exchanges_[rank]; }

  std::vector<absl::Status> OnAll(const std::function<absl::Status(int rank, MomentumExchange& exchange)>& body) {
    return OnRanks(world(), [&](int rank) { return body(rank, *exchanges_[rank]); });
  }

  // The values that each rank holds after a step with these momenta.
  std::vector<std::vector<float>> Step(int step) {
    std::vector<std::vector<float>> momenta;
    for (int rank = 0; rank < world(); ++rank) momenta.push_back(Momentum(rank, step));
    for (const absl::Status& status : OnAll([&](int rank, MomentumExchange&exchange) {
           exchange.Begin(momenta[rank]);
           return exchange.Finish();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    return momenta;
  }

  // Σ over ranks of δ / R, and δ̄: what the ranks have not told each other yet.
  std::vector<double> Kept() {
    const MomentumExchange::State state = Gather();
    std::vector<double> kept(state.owned.begin(), state.owned.end());
    for (const std::vector<float>& residual : state.residuals) {
      for (size_t i = 0; i < kept.size(); ++i) kept[i] += residual[i] / static_cast<double>(world());
    }
    return kept;
  }

  MomentumExchange::State Gather() {
    MomentumExchange::State state;
    for (const absl::Status& status : OnAll([&](int rank, MomentumExchange&exchange) -> absl::Status {
           ASSIGN_OR_RETURN(MomentumExchange::State gathered, exchange.Gather());
           if (rank == 0) state = std::move(gathered);
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    return state;
  }

 private:
  std::vector<RankUnderTest> ranks_;
  std::vector<float> variance_;
  std::vector<std::unique_ptr<MomentumExchange>> exchanges_;
};

class MomentumExchangeTest : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  Site MakeSite() const { return Site(world(), std::get<1>(GetParam())); }
};

TEST_P(MomentumExchangeTest, AllRanksHoldTheSameBits) {
  Site site = MakeSite();
  for (int step = 0; step < 3; ++step) {
    const std::vector<std::vector<float>> averaged = site.Step(step);
    for (const std::vector<float>& other : averaged) EXPECT_EQ(averaged[0], other);
  }
}

TEST_P(MomentumExchangeTest, WhatIsSentAndWhatIsKeptIsWhatTheRanksHad) {
  Site site = MakeSite();
  std::vector<double> had(kValues), sent(kValues);
  for (int step = 0; step < 20; ++step) {
    const std::vector<std::vector<float>> averaged = site.Step(step);
    for (int rank = 0; rank < world(); ++rank) {
      const std::vector<float> own = Momentum(rank, step);
      for (int64_t i = 0; i < kValues; ++i) had[i] += own[i] / static_cast<double>(world());
    }
    for (int64_t i = 0; i < kValues; ++i) sent[i] += averaged[0][i];
  }
  const std::vector<double> kept = site.Kept();
  for (int64_t i = 0; i < kValues; ++i) ASSERT_NEAR(sent[i] + kept[i], had[i], 1e-4) << i;
}

TEST_P(MomentumExchangeTest, AValueThatNoGradientHadReachedStaysZero) {
  Site site = MakeSite();
  for (int step = 0; step < 3; ++step) EXPECT_EQ(site.Step(step)[0][kNoGradient], 0.0f);
  EXPECT_EQ(site.Kept()[kNoGradient], 0.0);
}

TEST_P(MomentumExchangeTest, RestoredInTheSameWorldItGoesOnWithTheSameBits) {
  Site through = MakeSite();
  through.Step(0);
  const MomentumExchange::State state = through.Gather();
  Site restored = MakeSite();
  for (int rank = 0; rank < world(); ++rank) restored[rank].Restore(state);
  EXPECT_EQ(through.Step(1), restored.Step(1));
  EXPECT_EQ(through.Kept(), restored.Kept());
}

TEST_P(MomentumExchangeTest, RestoredInAnotherWorldItKeepsWhatTheRanksHadNotSent) {
  Site through = MakeSite();
  through.Step(0);
  const std::vector<double> kept = through.Kept();
  for (const int other : {1, 3}) {
    Site restored(other, std::get<1>(GetParam()));
    for (int rank = 0; rank < other; ++rank) restored[rank].Restore(through.Gather());
    const std::vector<double> moved = restored.Kept();
    for (int64_t i = 0; i < kValues; ++i) ASSERT_NEAR(moved[i], kept[i], 1e-6) << other << " ranks, value " << i;
  }
}

TEST_P(MomentumExchangeTest, AValueThatIsNotFiniteIsNamed) {
  if (world() == 1) return;  // encodes nothing
  Site site = MakeSite();
  const std::vector<absl::Status> statuses = site.OnAll([&](int rank, MomentumExchange& exchange) {
    std::vector<float> momentum = Momentum(rank, 0);
    momentum[5001] = std::numeric_limits<float>::infinity();
    exchange.Begin(momentum);
    return exchange.Finish();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expected momenta below 2^100"));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MomentumExchangeTest,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(kOneBucket, 4000)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_ranks_buckets_of_", std::get<1>(info.param));
                         });

TEST(MomentumExchangeBytesTest, SendsABitForEachValueOnBothLegsAndAScaleForEachPiece) {
  const std::vector<RankUnderTest> ranks = OverThreads(4);
  const core::Manifest one = {{.name = "matrix", .shape = {1024, 1024}}};
  const std::vector<float> variance(1 << 20, 1.0f);
  for (const absl::Status& status : OnRanks(4, [&](int rank) -> absl::Status {
         MomentumExchange exchange(one, {.values = ranks[rank].collectives.get(), .timeout_s = 60}, variance);
         std::vector<float> momentum = RandomValues(static_cast<uint64_t>(rank), 1 << 20);
         exchange.Begin(momentum);
         RETURN_IF_ERROR(exchange.Finish());
         constexpr int64_t kRange = (int64_t{1} << 18) / 8 + 4;  // bits of a quarter, and its scale
         const int64_t sent = ranks[rank].collectives->sent_bytes();
         return sent == 2 * 3 * kRange ? absl::OkStatus() : absl::InternalError(absl::StrCat(sent, " bytes"));
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace causeway::worker
