#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/worker/model/test_values.h"
#include "worker/optimizer/onebit_adam.h"

namespace causeway::worker {
namespace {

constexpr double kBeta2 = 0.9;  // Δ is 10
constexpr double kAnything = -1;

core::InnerConfig Config(int64_t freeze_at = core::kAutoFreeze) { return {.beta2 = kBeta2, .freeze_at = freeze_at}; }

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

}  // namespace
}  // namespace causeway::worker
