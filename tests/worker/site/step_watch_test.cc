#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/core/fake_clock.h"
#include "worker/site/site.h"

namespace causeway::worker {
namespace {

using Say = StepWatch::Say;
using ::testing::HasSubstr;

constexpr int64_t kTimeoutMs = 3000;

class StepWatchTest : public ::testing::Test {
 protected:
  void Step() { const InSite inside(watch_, /*steps=*/true); }
  void Join() { const InSite inside(watch_, /*steps=*/false); }
  Say LookAfter(int64_t ms) {
    clock_.Advance(ms);
    return watch_.Look(ranks_);
  }

  core::FakeClock clock_;
  StepWatch watch_{kTimeoutMs / 1000.0, clock_};
  core::RankProgress ranks_;
};

TEST_F(StepWatchTest, SaysOnceThatTrainingStandsStillAndThenNothingUntilTheNextStep) {
  Join();
  Step();
  EXPECT_EQ(LookAfter(kTimeoutMs), Say::kGoesOn);
  EXPECT_EQ(LookAfter(1), Say::kStandsStill);
  EXPECT_THAT(ranks_.standing_still, HasSubstr("no inner step for 3 s"));
  EXPECT_EQ(LookAfter(1000), Say::kNothing);
  Step();
  EXPECT_EQ(LookAfter(0), Say::kGoesOn);
  EXPECT_EQ(LookAfter(kTimeoutMs + 1), Say::kStandsStill);
}

TEST_F(StepWatchTest, KnownWaitsAndCallsOfTheSiteMayTakeAsLongAsTheyDo) {
  EXPECT_EQ(LookAfter(100 * kTimeoutMs), Say::kGoesOn);  // before it has joined
  Join();
  Step();
  watch_.Waits("evaluation");
  EXPECT_EQ(LookAfter(100 * kTimeoutMs), Say::kGoesOn);
  watch_.Waits("");
  EXPECT_EQ(LookAfter(kTimeoutMs), Say::kGoesOn);
  const InSite paused(watch_, /*steps=*/true);
  EXPECT_EQ(LookAfter(100 * kTimeoutMs), Say::kGoesOn);
}

TEST_F(StepWatchTest, TheFirstStepMayTakeTenTimesAsLong) {
  Join();
  EXPECT_EQ(LookAfter(10 * kTimeoutMs), Say::kGoesOn);
  EXPECT_EQ(LookAfter(1), Say::kStandsStill);
}

TEST_F(StepWatchTest, WhoSeesMoreIsBelievedAtOnce) {
  Step();
  watch_.HasRanks({.ranks = 8, .standing_still = "rank 3 of 8 (host) ended"});
  EXPECT_EQ(LookAfter(0), Say::kStandsStill);
  EXPECT_EQ(ranks_.standing_still, "rank 3 of 8 (host) ended");
  EXPECT_EQ(ranks_.ranks, 8);
}

}  // namespace
}  // namespace causeway::worker
