#include "server/rounds/run_rules.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using core::SiteState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(RunRules, StartWaitsForMinSitesAndSaysSo) {
  RulesForTest table(Rules(8, 1, 0, /*min_sites=*/3), {}, 0);
  EXPECT_THAT(Arrive(table, "a"), IsEmpty());
  EXPECT_EQ(table.run_state(), RunState::kWaiting);
  EXPECT_EQ(table.Reason(), "1 of 3 sites are ready (min_sites)");
  EXPECT_THAT(Arrive(table, "c"), IsEmpty());
  const auto entered = ActionsOf<Enter>(Arrive(table, "b"));
  ASSERT_THAT(entered, SizeIs(3));
  for (const Enter& enter : entered) EXPECT_THAT(enter.entry.sites, ElementsAre("a", "b", "c"));
  EXPECT_EQ(table.run_state(), RunState::kTraining);
  EXPECT_EQ(table.Reason(), "");
}

TEST(RunRules, NameOfALivingSiteIsRefusedForGood) {
  RulesForTest table = TableOf({"a"});
  const auto second = table.Join({.site = "a", .session = "a-2", .held = {}}, 10);
  EXPECT_FALSE(second.accepted);
  EXPECT_EQ(second.retry_after_ms, 0);
  EXPECT_EQ(second.reason, "site a is in the run already and alive; give this one another name");
}

TEST(RunRules, NameOfASiteThatBrokeIsFreeAfterTheLease) {
  RulesForTest table = TableOf({"a"});
  table.Disconnected("a", "a-1", 300);
  const auto early = table.Join({.site = "a", .session = "a-2", .held = {}}, 500);
  EXPECT_FALSE(early.accepted);
  EXPECT_EQ(early.retry_after_ms, 800);
  EXPECT_THAT(early.reason, HasSubstr("its name is free in 800 ms"));
  EXPECT_THAT(table.Tick(1299), IsEmpty());
  EXPECT_EQ(Only<Dropped>(table.Tick(1300)).reason, "not heard of for 1000 ms (lease_ms)");
  EXPECT_TRUE(table.Join({.site = "a", .session = "a-2", .held = {}}, 1300).accepted);
}

TEST(RunRules, WhoIsHeardOfKeepsItsLease) {
  RulesForTest table = TableOf({"a"});
  table.Heard("a", "a-1", {.step = 0}, 900);
  table.Heard("a", "another session", {.step = 0}, 1800);
  EXPECT_TRUE(HappensAt<Dropped>(table, 1900));
}

TEST(RunRules, OpenRoundsCloseWithoutASiteWhoseLeaseEnded) {
  RulesForTest table = TableOf({"a", "b"}, Rules());
  EXPECT_THAT(Contribute(table, "a", 0, 0), IsEmpty());
  EXPECT_EQ(table.RoundReason(0), "waiting for b");
  table.Heard("a", "a-1", {.step = 0}, 600);
  const auto closed = Only<CloseRound>(table.Tick(1000));
  EXPECT_THAT(Names(closed), ElementsAre("a"));
  EXPECT_THAT(closed.sites, ElementsAre("a"));
  EXPECT_EQ(table.state().versions[0], 1);
}

TEST(RunRules, SessionThatReturnsWithinTheLeaseIsResumed) {
  RulesForTest table = TableOf({"a"});
  table.Disconnected("a", "a-1", 100);
  EXPECT_THAT(table.state().sites.at("a").reason, HasSubstr("control stream broke"));
  const auto back = table.Join({.site = "a", .session = "a-1", .held = {0}}, 900);
  EXPECT_TRUE(back.accepted);
  EXPECT_TRUE(back.resumed);
  EXPECT_THAT(back.actions, IsEmpty());
  EXPECT_THAT(table.Tick(1899), IsEmpty());
}

TEST(RunRules, SiteThatComesBackBeforeItHadEnteredStartsOver) {
  RulesForTest table = TableOf({"a"});  // entered, says the table; but the answer was lost, and it holds nothing
  const auto back = table.Join({.site = "a", .session = "a-1", .held = {}}, 100);
  EXPECT_TRUE(back.accepted);
  EXPECT_FALSE(back.resumed);
  EXPECT_THAT(ActionsOf<Dropped>(back.actions), SizeIs(1));
  EXPECT_EQ(table.state().sites.at("a").state, SiteState::kJoining);
  EXPECT_THAT(ActionsOf<Enter>(table.Ready("a", "a-1")), SizeIs(1));
}

TEST(RunRules, RoundClosesWhenAllHaveContributedInBytewiseOrder) {
  RulesForTest table = TableOf({"b", "a", "C"});
  EXPECT_THAT(Contribute(table, "b", 0, 0), IsEmpty());
  EXPECT_THAT(Contribute(table, "C", 0, 0), IsEmpty());
  const auto closed = Only<CloseRound>(Contribute(table, "a", 0, 0));
  EXPECT_EQ(closed.base, 0);
  EXPECT_THAT(Names(closed), ElementsAre("C", "a", "b"));
  EXPECT_THAT(Weights(closed), ElementsAre(1, 1, 1));
}

TEST(RunRules, AdmittedContributionOfASiteThatLeftIsMerged) {
  RulesForTest table = TableOf({"a", "b"});
  Contribute(table, "a", 0, 0);
  EXPECT_THAT(ActionsOf<CloseRound>(LeaveRun(table, "a")), IsEmpty());
  const auto closed = Only<CloseRound>(Contribute(table, "b", 0, 0));
  EXPECT_THAT(Names(closed), ElementsAre("a", "b"));
  EXPECT_THAT(closed.sites, ElementsAre("b"));
}

TEST(RunRules, TwoLeasesThatEndTogetherStillMergeWhatOneOfThemContributed) {
  RulesForTest table = TableOf({"a", "b"});
  Contribute(table, "a", 0, 0);
  EXPECT_THAT(Names(Only<CloseRound>(table.Tick(kLeaseMs))), ElementsAre("a"));
  EXPECT_EQ(table.run_state(), RunState::kPaused);
}

TEST(RunRules, ChecksContributions) {
  RulesForTest table = TableOf({"a"}, Rules(8, 2, 0, 2));
  EXPECT_THAT(Check(table, "a", 0, 0).message(), HasSubstr("has not entered yet"));
  Arrive(table, "b");
  EXPECT_TRUE(Check(table, "a", 0, 0).ok());
  EXPECT_THAT(Check(table, "a", 2, 0).message(), HasSubstr("a fragment from 0 to 1, got 2"));
  EXPECT_THAT(Check(table, "a", -1, 0).message(), HasSubstr("a fragment from 0 to 1, got -1"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(table, "a", 0, -1)));  // and not a repeat of "none merged"
  EXPECT_THAT(Check(table, "a", 0, 1).message(), HasSubstr("is of base version 0, the contribution is of 1"));
  EXPECT_THAT(table.CheckContribution("a", "a-2", 0, {.base = 0}).message(),
              HasSubstr("not in the run with this session"));
  EXPECT_THAT(Check(table, "stranger", 0, 0).message(), HasSubstr("not in the run with this session"));
  Contribute(table, "a", 0, 0);
  EXPECT_EQ(Check(table, "a", 0, 0), absl::AlreadyExistsError("admitted already"));
  Contribute(table, "b", 0, 0);
  EXPECT_EQ(Check(table, "a", 0, 0), absl::AlreadyExistsError("merged already"));
  EXPECT_TRUE(Check(table, "a", 0, 1).ok());
}

TEST(RunRules, SeedIsAskedOfTheFirstJoinerAndThenOfTheNext) {
  RulesForTest table(Rules(), {}, 0);
  const auto join = [&](const char* site, int64_t now_ms) {
    return ActionsOf<RequestSeed>(table.Join({.site = site, .session = SessionOf(site), .held = {}}, now_ms).actions);
  };
  EXPECT_THAT(join("b", 0), SizeIs(1));
  EXPECT_THAT(join("c", 0), IsEmpty());
  EXPECT_THAT(join("a", 0), IsEmpty());
  EXPECT_THAT(ActionsOf<RequestSeed>(LeaveRun(table, "c")), IsEmpty());
  EXPECT_EQ(Only<RequestSeed>(LeaveRun(table, "b")).site, "a");
  table.Disconnected("a", "a-1", 10);
  EXPECT_THAT(join("a", 20), SizeIs(1)) << "it may not have heard the first time";
  table.Seeded();
  EXPECT_THAT(join("d", 20), IsEmpty());
}

TEST(RunRules, RunWithoutSitesIsPausedUntilOneJoins) {
  RulesForTest table = TableOf({"a"});
  LeaveRun(table, "a");
  EXPECT_EQ(table.run_state(), RunState::kPaused);
  EXPECT_EQ(table.Reason(), "no site is in the run; it goes on when one joins");
  EXPECT_THAT(ActionsOf<Enter>(Arrive(table, "b")), SizeIs(1));
  EXPECT_EQ(table.run_state(), RunState::kTraining);
}

TEST(RunRules, RunIsDoneWhenTheLastSiteHasLeftAndOneHadFinished) {
  RulesForTest table = TableOf({"a", "b"});
  LeaveRun(table, "a", /*finished=*/true);
  EXPECT_EQ(table.run_state(), RunState::kTraining);
  LeaveRun(table, "b", /*finished=*/true);
  EXPECT_EQ(table.run_state(), RunState::kDone);
  EXPECT_EQ(table.Join({.site = "c", .session = "c-1", .held = {}}, 0).reason, "the run is done");
}

TEST(RunRules, DrainingSiteStillCounts) {
  RulesForTest table = TableOf({"a", "b"});
  EXPECT_TRUE(table.StartDraining("a", "asked to").ok());
  EXPECT_THAT(table.StartDraining("x", "asked to").message(), HasSubstr("not in the run"));
  EXPECT_THAT(Contribute(table, "b", 0, 0), IsEmpty());
  EXPECT_THAT(ActionsOf<CloseRound>(Contribute(table, "a", 0, 0)), SizeIs(1));
}

TEST(RunRules, SiteWhoseLeaseEndedIsLostUntilItComesBack) {
  RulesForTest table = TableOf({"a"});
  EXPECT_FALSE(IsLost(table.state().sites.at("a")));
  table.Tick(kLeaseMs);
  EXPECT_TRUE(IsLost(table.state().sites.at("a")));
  const RulesForTest restarted(Rules(), table.state(), 50'000);
  EXPECT_TRUE(IsLost(restarted.state().sites.at("a"))) << "a restart of the coordinator forgets no site";
  Arrive(table, "a");
  EXPECT_FALSE(IsLost(table.state().sites.at("a")));
}

TEST(RunRules, LostSiteIsNotMissedAnyMoreOnceItIsToldToLeave) {
  RulesForTest table = TableOf({"a"});
  table.Tick(kLeaseMs);
  EXPECT_TRUE(table.StartDraining("a", "asked to leave").ok());
  EXPECT_FALSE(IsLost(table.state().sites.at("a")));
  EXPECT_EQ(table.state().sites.at("a").state, SiteState::kGone);
  EXPECT_EQ(table.state().sites.at("a").reason, "asked to leave after its lease had ended");
  EXPECT_THAT(table.StartDraining("a", "asked to").message(), HasSubstr("not training: it is gone"));
}

TEST(RunRules, WhoLeftOrWasToLeaveIsNotLost) {
  RulesForTest table = TableOf({"a", "b"});
  LeaveRun(table, "a");
  EXPECT_FALSE(IsLost(table.state().sites.at("a")));
  EXPECT_TRUE(table.StartDraining("b", "asked to").ok());
  table.Tick(kLeaseMs);
  EXPECT_EQ(table.state().sites.at("b").state, SiteState::kGone);
  EXPECT_EQ(table.state().sites.at("b").reason, "was to leave; not heard of for 1000 ms (lease_ms)");
  EXPECT_FALSE(IsLost(table.state().sites.at("b")));
}

TEST(RunRules, ReadyCountsOnlyInTheSitesSessionAndOnceThereAreInitialParameters) {
  RulesForTest table(Rules(), {}, 0);
  table.Join({.site = "a", .session = "a-1", .held = {}}, 0);
  EXPECT_THAT(table.Ready("a", "a-1"), IsEmpty());
  EXPECT_FALSE(table.IsReady("a"));
  table.Seeded();
  EXPECT_THAT(table.Ready("a", "a-2"), IsEmpty());
  EXPECT_THAT(table.Ready("b", "b-1"), IsEmpty());
  EXPECT_FALSE(table.IsReady("a"));
  EXPECT_FALSE(table.state().sites.contains("b"));
  EXPECT_THAT(ActionsOf<Enter>(table.Ready("a", "a-1")), ::testing::SizeIs(1));
}

TEST(RunRules, LeasesThatWereGoingOnGoOnAfterTheCoordinatorStoodStill) {
  RulesForTest table = TableOf({"a", "b"});
  table.Heard("a", "a-1", {.step = 1}, 600);
  table.StoodStill(700, 5'000);
  table.Heard("b", "b-1", {.step = 1}, 5'000);
  EXPECT_TRUE(HappensAt<Dropped>(table, 5'900)) << "a has 900 ms left, as before";
  EXPECT_EQ(table.ActiveSites(), std::vector<core::SiteId>{"b"});
  table.Tick(6'000);
  EXPECT_THAT(table.ActiveSites(), IsEmpty()) << "b was heard of afterwards: nothing is added";
}

// It was heard of after the last tick, and the process stood still at some time after that.
TEST(RunRules, LeaseOfASiteThatWasHeardOfJustBeforeTheStallHasItsWholeTime) {
  RulesForTest table = TableOf({"a"});
  table.Heard("a", "a-1", {.step = 1}, 800);
  table.StoodStill(700, 5'000);
  EXPECT_TRUE(HappensAt<Dropped>(table, 6'000));
  EXPECT_THAT(table.ActiveSites(), IsEmpty());
}

TEST(RunRules, RestartRenewsAllLeasesAndKnowsEverySession) {
  RulesForTest before = TableOf({"a", "b"});
  Contribute(before, "a", 0, 0);
  RulesForTest table(Rules(8, 1, 0, 2), before.state(), 50'000);
  EXPECT_THAT(table.state().sites.at("a").reason, HasSubstr("expected back after the coordinator's restart"));
  const auto other = table.Join({.site = "b", .session = "b-2", .held = {}}, 50'000);
  EXPECT_EQ(other.retry_after_ms, kLeaseMs) << "it may be back as another process: " << other.reason;
  EXPECT_THAT(table.Tick(50'000 + kLeaseMs - 1), IsEmpty());
  EXPECT_TRUE(table.Join({.site = "b", .session = "b-1", .held = {0}}, 50'000).resumed);
  EXPECT_EQ(Check(table, "a", 0, 0), absl::AlreadyExistsError("admitted already"));
  EXPECT_THAT(Names(Only<CloseRound>(Contribute(table, "b", 0, 0))), ElementsAre("a", "b"));
}

TEST(RunRules, LeaseOfASiteThatDoesNotHearTheCoordinatorIsCountedFromWhenItDid) {
  RulesForTest table = TableOf({"a", "b"});
  for (int64_t now_ms = 100; now_ms <= 1'500; now_ms += 100) {
    table.Heard("a", "a-1", {.step = 1, .unheard_ms = now_ms - 100}, now_ms);  // its last news are of 100
    table.Heard("b", "b-1", {.step = 1, .unheard_ms = 50}, now_ms);
    EXPECT_EQ(ActionsOf<Dropped>(table.Tick(now_ms)).size(), now_ms == 1'100 ? 1 : 0) << now_ms;
  }
  EXPECT_EQ(table.state().sites.at("a").reason, "does not hear the coordinator for 1000 ms (lease_ms)");
  EXPECT_TRUE(IsLost(table.state().sites.at("a")));
}

TEST(RunRules, LeaseOfASiteWhoseTrainingStandsStillGoesOnAsIfItHadNotReported) {
  RulesForTest table = TableOf({"a", "b"});
  table.Heard("a", "a-1", {.step = 1}, 100);
  table.Heard("a", "a-1", {.step = 1, .standing_still = "rank 1 of 2 (host) ended"}, 800);
  EXPECT_EQ(table.state().sites.at("a").reason, "its training stands still: rank 1 of 2 (host) ended");
  table.Heard("b", "b-1", {.step = 1}, 1'000);
  EXPECT_EQ(Only<Dropped>(table.Tick(1'100)).reason,
            "not heard of for 1000 ms (lease_ms): its training stands still: rank 1 of 2 (host) ended");
}

TEST(RunRules, ASiteWhoseTrainingGoesOnWithinItsLeaseStays) {
  RulesForTest table = TableOf({"a"});
  table.Heard("a", "a-1", {.step = 1, .standing_still = "no inner step for 3 s"}, 500);
  table.Heard("a", "a-1", {.step = 2}, 900);
  EXPECT_EQ(table.state().sites.at("a").reason, "");
  EXPECT_TRUE(ActionsOf<Dropped>(table.Tick(1'800)).empty());
}

// Its last news were sent before the coordinator stood still, which it does not see: that time does not count.
TEST(RunRules, TimeInWhichTheCoordinatorStoodStillIsNoneWithoutNewsOfIt) {
  RulesForTest table = TableOf({"a"});
  table.StoodStill(400, 2'400);
  table.Heard("a", "a-1", {.step = 1, .unheard_ms = 2'100}, 2'450);  // of 350
  EXPECT_TRUE(HappensAt<Dropped>(table, 3'350));
}

TEST(RunRules, InDoubtClosesNoRoundUntilAnOperatorResumes) {
  RulesForTest table = TableOf({"a", "b"});
  table.Doubt("b holds version 7");
  EXPECT_TRUE(table.held());
  EXPECT_EQ(table.Reason(), "b holds version 7");
  EXPECT_THAT(ActionsOf<CloseRound>(ContributeEach(table, {"a", "b"}, 0, 0)), IsEmpty());
  EXPECT_EQ(table.run_state(), RunState::kPaused);
  EXPECT_EQ(table.RoundReason(0), "b holds version 7");
  EXPECT_TRUE(table.Resume().ok());
  EXPECT_FALSE(table.held());
  EXPECT_EQ(ActionsOf<CloseRound>(table.Tick(10)).size(), 1);
}

TEST(RunRules, DoubtThatAnOperatorHasSettledOrThatMeetsAStopHoldsNothingUp) {
  RulesForTest table = TableOf({"a"}, Rules(8, 1, 0, 2));
  table.Doubt("b holds version 7");
  EXPECT_TRUE(table.Resume().ok());
  table.Doubt("c holds version 7");
  EXPECT_FALSE(table.held());

  RulesForTest stopped = TableOf({"a"}, Rules(8, 1, 0, 2));
  EXPECT_TRUE(stopped.Stop().ok());
  stopped.Doubt("b holds version 7");
  EXPECT_FALSE(stopped.held()) << "or its sites could not drain";
}

}  // namespace
}  // namespace causeway::server
