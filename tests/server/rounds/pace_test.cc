#include "server/rounds/pace.h"

#include <gtest/gtest.h>

namespace causeway::server {
namespace {

constexpr int64_t kLongestGapMs = 5000;

TEST(Pace, StepTimeIsTheMedianOfTheSitesAndTheLowerOneOfTwo) {
  Pace pace;
  EXPECT_FALSE(pace.StepMs());
  for (int step = 0; step <= 2; ++step) {
    pace.Heard("a", step, step * 100, kLongestGapMs);
    pace.Heard("b", step, step * 400, kLongestGapMs);
  }
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 100);
  for (int step = 0; step <= 2; ++step) pace.Heard("c", step, step * 200, kLongestGapMs);
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 200);
  pace.Forget("a");
  pace.Forget("c");
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 400);
}

TEST(Pace, ReportsThatDoNotFallOnStepsAreNoBias) {
  Pace pace;  // a step takes 700 ms, a report comes each second
  for (int64_t now_ms = 0; now_ms < 100'000; now_ms += 1000) pace.Heard("a", now_ms / 700, now_ms, kLongestGapMs);
  EXPECT_NEAR(*pace.StepMs(), 700, 50);
}

TEST(Pace, LongStepsAreMeasuredFromOneToTheNext) {
  Pace pace;  // a step takes 4 s
  for (int64_t now_ms = 0; now_ms <= 40'000; now_ms += 1000) pace.Heard("a", now_ms / 4000, now_ms, kLongestGapMs);
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 4000);
}

TEST(Pace, PauseBetweenReportsSaysNothing) {
  Pace pace;
  pace.Heard("a", 1, 100, kLongestGapMs);
  pace.Heard("a", 2, 200, kLongestGapMs);
  pace.Heard("a", 3, 60'000, kLongestGapMs);  // too long ago
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 100);
  pace.Heard("a", 4, 60'100, kLongestGapMs);
  pace.Interrupted("a");
  pace.Heard("a", 5, 63'000, kLongestGapMs);
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 100);
  pace.Heard("a", 2, 63'050, kLongestGapMs);  // back to a checkpoint
  pace.Heard("a", 3, 63'150, kLongestGapMs);
  EXPECT_DOUBLE_EQ(*pace.StepMs(), 100);
}

TEST(Pace, GraceIsAShareOfTheSlackUpToTheCap) {
  Pace pace;
  EXPECT_EQ(pace.GraceMs(/*cap_ms=*/300, /*delay=*/5), 300) << "no site has stepped yet";
  pace.Heard("a", 0, 0, kLongestGapMs);
  pace.Heard("a", 1, 100, kLongestGapMs);
  EXPECT_EQ(pace.GraceMs(300, 5), 300);
  EXPECT_EQ(pace.GraceMs(1000, 5), 400);
  EXPECT_EQ(pace.GraceMs(1000, 0), 0);
  pace.ReachedQuorum(150);
  pace.Transferred(50);
  EXPECT_EQ(pace.GraceMs(1000, 5), 240);
  EXPECT_EQ(pace.GraceMs(1000, 2), 0);
}

TEST(Pace, DistanceIsAShareOfASyncInterval) {
  Pace pace;
  EXPECT_EQ(pace.DistanceMs(/*sync_every=*/20), 0);
  pace.Heard("a", 0, 0, kLongestGapMs);
  pace.Heard("a", 1, 100, kLongestGapMs);
  EXPECT_DOUBLE_EQ(pace.DistanceMs(20), 1900);
}

}  // namespace
}  // namespace causeway::server
