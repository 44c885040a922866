// Commands of operators: pause, resume, stop.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using core::SiteState;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Both modes with sites a and b, which are a quorum.
std::vector<RulesForTest> BothModes() {
  std::vector<RulesForTest> tables;
  for (core::SyncMode mode : {core::SyncMode::kSynchronous, core::SyncMode::kQuorum}) {
    RoundSettings rules = QuorumRules(2);
    rules.sync.mode = mode;
    rules.membership.lease_ms = kLeaseMs;
    tables.emplace_back(rules, core::RoundState(), 0);
    Arrive(tables.back(), "a");
    Arrive(tables.back(), "b");
  }
  return tables;
}

TEST(Pause, AdmitsButClosesNoRoundUntilItResumes) {
  for (RulesForTest& table : BothModes()) {
    ASSERT_TRUE(table.Pause().ok());
    EXPECT_TRUE(table.held());
    EXPECT_EQ(table.run_state(), RunState::kPaused);
    EXPECT_EQ(table.Reason(), "paused by an operator");
    Contribute(table, "a", 0, 0);
    EXPECT_THAT(Contribute(table, "b", 0, 0), IsEmpty());
    EXPECT_EQ(table.RoundReason(0), "paused by an operator");
    EXPECT_THAT(table.Tick(10), IsEmpty());
    ASSERT_TRUE(table.Resume().ok());
    EXPECT_FALSE(table.held());
    EXPECT_EQ(table.RoundReason(0), "complete");
    EXPECT_THAT(ActionsOf<CloseRound>(table.Tick(20)), SizeIs(1));
    EXPECT_EQ(table.Reason(), "");
  }
}

TEST(Pause, SaysWhenThereIsNothingToDo) {
  for (RulesForTest& table : BothModes()) {
    EXPECT_EQ(table.Resume().message(), "the run is neither paused nor stopped by an operator");
    EXPECT_TRUE(table.Pause().ok());
    EXPECT_EQ(table.Pause().message(), "the run is paused already");
    EXPECT_TRUE(table.Stop().ok());
    EXPECT_EQ(table.Stop().message(), "the run is stopped already");
    EXPECT_EQ(table.Pause().message(), "the run is stopped");
    EXPECT_TRUE(table.Resume().ok());
    LeaveRun(table, "a", /*finished=*/true);
    LeaveRun(table, "b", /*finished=*/true);
    EXPECT_EQ(table.Stop().message(), "the run is done");
    EXPECT_EQ(table.Pause().message(), "the run is done");
  }
}

TEST(Pause, OutlivesARestart) {
  for (RulesForTest& before : BothModes()) {
    ASSERT_TRUE(before.Pause().ok());
    RulesForTest table(QuorumRules(2), before.state(), 0);
    EXPECT_TRUE(table.held());
    EXPECT_EQ(table.Reason(), "paused by an operator");
  }
}

TEST(Stop, DrainsAllSitesAndIsDoneWhenTheyHaveLeft) {
  for (RulesForTest& table : BothModes()) {
    Contribute(table, "a", 0, 0);
    ASSERT_TRUE(table.Stop().ok());
    EXPECT_FALSE(table.held());
    EXPECT_EQ(table.Reason(), "stopped by an operator");
    EXPECT_EQ(table.run_state(), RunState::kPaused);
    EXPECT_EQ(table.state().sites.at("b").state, SiteState::kDraining);
    Complete(table, "a");
    const auto closed = ActionsOf<CloseRound>(LeaveRun(table, "b"));
    EXPECT_THAT(closed, SizeIs(1));  // a waits for its round in order to leave
    EXPECT_EQ(table.run_state(), RunState::kPaused);
    LeaveRun(table, "a");
    EXPECT_EQ(table.run_state(), RunState::kDone);
    EXPECT_EQ(table.Reason(), "stopped by an operator");
  }
}

TEST(Stop, EndsAPauseSoThatTheLastRoundsClose) {
  for (RulesForTest& table : BothModes()) {
    ASSERT_TRUE(table.Pause().ok());
    ASSERT_TRUE(table.Stop().ok());
    Contribute(table, "a", 0, 0);
    EXPECT_THAT(ActionsOf<CloseRound>(Contribute(table, "b", 0, 0)), SizeIs(1));
  }
}

TEST(Stop, RefusesJoinersUntilTheRunIsResumed) {
  for (RulesForTest& table : BothModes()) {
    table.Join({.site = "early", .session = "early-1", .held = {}}, 0);
    ASSERT_TRUE(table.Stop().ok());
    EXPECT_THAT(table.Ready("early", "early-1"), IsEmpty());
    const auto late = table.Join({.site = "late", .session = "late-1", .held = {}}, 0);
    EXPECT_FALSE(late.accepted);
    EXPECT_EQ(late.reason, "the run is stopped by an operator; sites can join once it is resumed");
    const auto dropped = ActionsOf<Dropped>(table.Tick(1));
    ASSERT_THAT(dropped, SizeIs(1));
    EXPECT_EQ(dropped[0].site, "early");
    EXPECT_EQ(dropped[0].reason, "stopped by an operator");
    EXPECT_TRUE(table.Join({.site = "a", .session = "a-1", .held = {0}}, 2).resumed);
    ASSERT_TRUE(table.Resume().ok());
    EXPECT_THAT(ActionsOf<Enter>(Arrive(table, "late", 3)), SizeIs(1));
  }
}

}  // namespace
}  // namespace causeway::server
