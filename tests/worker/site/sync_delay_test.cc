#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/site/site_state.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

TEST(SyncDelay, TakesTheLongestWhileNothingIsMeasured) {
  SyncDelay delay(/*sync_every=*/20, /*num_fragments=*/1);
  EXPECT_EQ(delay.Choose().delay, 19);
  delay.Stepped(0.1);
  EXPECT_EQ(delay.Choose().delay, 19);
  EXPECT_THAT(delay.Choose().reason, HasSubstr("nothing is measured yet"));
}

TEST(SyncDelay, CoversTheLongestOfTheLastLatenciesWithAMargin) {
  SyncDelay delay(100, 1);
  delay.Stepped(0.1);
  delay.Arrived(1.0, 0);
  EXPECT_EQ(delay.Choose().delay, 12);  // 11 steps of 100 ms cover 1.1 s
  delay.Arrived(0.5, 0);
  delay.Arrived(0.5, 0);
  EXPECT_EQ(delay.Choose().delay, 12);
  delay.Arrived(0.5, 0);
  EXPECT_EQ(delay.Choose().delay, 7);
  delay.Arrived(3.0, 0);  // a link that got slower is followed at once
  EXPECT_EQ(delay.Choose().delay, 34);
  EXPECT_EQ(delay.Choose().reason, "updates take 3000 ms, steps 100.0 ms");
}

TEST(SyncDelay, WhatDelayedOneFragmentCountsForAllOfThemForThreeRounds) {
  SyncDelay delay(100, /*num_fragments=*/2);
  delay.Stepped(0.1);
  delay.Arrived(2.0, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(delay.Choose().delay, 23);
    delay.Arrived(1.0, 0);
  }
  delay.Arrived(1.0, 0);
  EXPECT_EQ(delay.Choose().delay, 12);
}

TEST(SyncDelay, WaitsForOthersCountForThreeTimesTheTransferAtMost) {
  SyncDelay delay(100, 1);
  delay.Stepped(0.1);
  delay.Arrived(1.0, /*waited_s=*/0.4);
  EXPECT_EQ(delay.Choose().delay, 12);
  SyncDelay ahead(100, 1);
  ahead.Stepped(0.1);
  ahead.Arrived(6.0, /*waited_s=*/5.5);
  EXPECT_EQ(ahead.Choose().delay, 23);  // half a second of transfer, and three times as much of waiting
}

// Two sites of which one computes half as fast: the fast one waits for it whatever its delay.
TEST(SyncDelay, DoesNotGrowWithTheHeadStartThatItGives) {
  constexpr double kTransferS = 0.3, kStepS = 0.1;
  SyncDelay delay(100, 1);
  delay.Stepped(kStepS);
  double ahead_s = 0;
  for (int round = 0; round < 50; ++round) {
    const core::Step chosen = delay.Choose().delay;
    ahead_s = std::min(ahead_s + 10, static_cast<double>(chosen) * kStepS);  // it runs ahead until it has to wait
    delay.Arrived(kTransferS + ahead_s, ahead_s);
  }
  EXPECT_LE(delay.Choose().delay, 15);
}

TEST(SyncDelay, IsNeverBelowAStepNorBeyondTheNextSend) {
  SyncDelay delay(4, 1);
  delay.Stepped(10);
  delay.Arrived(1e-6, 0);
  EXPECT_EQ(delay.Choose().delay, 2);
  delay.Arrived(1000, 0);
  EXPECT_EQ(delay.Choose().delay, 3);
  SyncDelay every_step(1, 1);
  every_step.Stepped(1);
  every_step.Arrived(1, 0);
  EXPECT_EQ(every_step.Choose().delay, 0);
}

TEST(SyncDelay, FollowsTheStepTime) {
  SyncDelay delay(100, 1);
  delay.Arrived(1.0, 0);
  delay.Stepped(0.1);
  for (int i = 0; i < 200; ++i) delay.Stepped(0.05);
  EXPECT_EQ(delay.Choose().delay, 23);  // 22 and a little: the first step has not quite been forgotten
}

}  // namespace
}  // namespace causeway::worker
