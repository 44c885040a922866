// The events of a round, in the order in which a coordinator reports them.
#include "server/status/round_log.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::server {
namespace {

using ::testing::Optional;
using ::testing::SizeIs;

TEST(RoundLog, ARoundIsToldFromItsFirstChunkToItsLastDownload) {
  RoundLog log;
  log.Begun(2, 5, "eu", 100);
  log.Begun(2, 5, "asia", 90);
  log.Arrived(2, 5, "eu", 100, 150);
  log.Arrived(2, 5, "asia", 90, 170);
  log.Decided(2, 5, "all 2 active sites have contributed", 171);
  log.Merged(2, {5, 0xab}, 180);
  EXPECT_THAT(log.Taken(2, 5, "eu", 0, 1, 181, 200), Optional(19));
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(1));
  const LoggedRound& round = *rounds[0];
  EXPECT_EQ(round.fragment, 2);
  EXPECT_EQ(round.version, 5);
  EXPECT_THAT(round.first_unix_ms(), Optional(90));
  ASSERT_THAT(round.arrivals, SizeIs(2));
  EXPECT_EQ(round.arrivals[0].site, "eu");
  EXPECT_THAT(round.arrivals[0].arrived_unix_ms, Optional(150));
  EXPECT_THAT(round.decided_unix_ms, Optional(171));
  EXPECT_THAT(round.merged_unix_ms, Optional(180));
  EXPECT_THAT(round.digest, Optional(0xab));
  EXPECT_EQ(round.reason, "all 2 active sites have contributed");
  ASSERT_THAT(round.downloads, SizeIs(1));
  EXPECT_THAT(round.downloads[0].taken_unix_ms, Optional(200));
}

TEST(RoundLog, OpenRoundsComeLast) {
  RoundLog log;
  log.Begun(1, 1, "eu", 5);
  log.Decided(0, 1, "", 10);
  log.Decided(0, 2, "", 20);
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(3));
  EXPECT_EQ(rounds[0]->version, 1);
  EXPECT_EQ(rounds[1]->version, 2);
  EXPECT_FALSE(rounds[2]->decided_unix_ms);
}

TEST(RoundLog, AContributionThatIsLateArrivesInTheNextRound) {
  RoundLog log;
  log.Begun(0, 1, "slow", 10);
  log.Arrived(0, 1, "eu", 12, 15);
  log.Decided(0, 1, "quorum of 1", 20);
  log.Arrived(0, 2, "slow", 10, 40);
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(2));
  ASSERT_THAT(rounds[0]->arrivals, SizeIs(1));
  EXPECT_EQ(rounds[0]->arrivals[0].site, "eu");
  ASSERT_THAT(rounds[1]->arrivals, SizeIs(1));
  EXPECT_EQ(rounds[1]->arrivals[0].begun_unix_ms, 10);
  EXPECT_THAT(rounds[1]->arrivals[0].arrived_unix_ms, Optional(40));
}

TEST(RoundLog, WhatWillNotArriveIsForgottenAndWhatArrivedIsNot) {
  RoundLog log;
  log.Begun(0, 1, "gone", 10);
  log.Arrived(0, 1, "eu", 12, 15);
  log.Forget(0, "gone");
  log.Forget(0, "eu");
  ASSERT_THAT(log.rounds()[0]->arrivals, SizeIs(1));
  EXPECT_EQ(log.rounds()[0]->arrivals[0].site, "eu");
}

TEST(RoundLog, ADownloadInStripesIsTakenWithItsLast) {
  RoundLog log;
  log.Decided(0, 1, "", 1);
  EXPECT_FALSE(log.Taken(0, 1, "eu", 1, 3, 12, 20));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 3, 10, 30));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 3, 10, 31)) << "the same once more";
  EXPECT_THAT(log.Taken(0, 1, "eu", 2, 3, 11, 50), Optional(40));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 2, 3, 11, 60)) << "it has it";
}

TEST(RoundLog, ADownloadThatGoesOnOverFewerConnectionsIsNotTakenTooEarly) {
  RoundLog log;
  log.Decided(0, 1, "", 1);
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 3, 10, 20));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 1, 2, 10, 30));
  EXPECT_THAT(log.Taken(0, 1, "eu", 0, 2, 10, 40), Optional(30));
}

TEST(RoundLog, WhatIsHandedOutDoesNotChange) {
  RoundLog log;
  log.Begun(0, 1, "eu", 10);
  const LoggedRounds before = log.rounds();
  log.Arrived(0, 1, "eu", 10, 15);
  log.Decided(0, 1, "done", 16);
  log.Merged(0, {1, 7}, 17);
  EXPECT_FALSE(before[0]->arrivals[0].arrived_unix_ms);
  EXPECT_FALSE(before[0]->decided_unix_ms);
  EXPECT_FALSE(before[0]->merged_unix_ms);
  EXPECT_THAT(log.rounds()[0]->merged_unix_ms, Optional(17));
}

TEST(RoundLog, KeepsTheLastRounds) {
  RoundLog log;
  const auto last = static_cast<core::Version>(RoundLog::kKeptRounds) + 10;
  for (core::Version version = 1; version <= last; ++version) log.Decided(0, version, "", version);
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(RoundLog::kKeptRounds));
  EXPECT_EQ(rounds.front()->version, 11);
  EXPECT_EQ(rounds.back()->version, last);
  log.Merged(0, {1, 7}, 999);  // not kept
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 1, 1, 2));
}

}  // namespace
}  // namespace causeway::server
