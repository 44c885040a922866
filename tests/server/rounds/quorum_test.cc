// Quorum mode: when a round closes, what may join it, what it weighs.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/table_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<CloseRound> Closed(const Actions& actions) { return ActionsOf<CloseRound>(actions); }

// Sites a, b and c are in; two are a quorum.
RoundTable ThreeSites(RoundRules rules) {
  RoundTable table(rules, {}, 0);
  for (const char* site : {"a", "b", "c"}) Arrive(table, site);
  return table;
}

// The sites do three steps of 100 ms each until `until_ms`, and report each.
void Steps(RoundTable& table, const std::vector<core::SiteId>& sites, int64_t until_ms) {
  for (int step = 0; step <= 3; ++step) {
    for (const core::SiteId& site : sites) {
      table.Heard(site, SessionOf(site), {.step = step}, until_ms - (3 - step) * 100);
    }
  }
}

TEST(Quorum, ClosesARoundWithoutWaitingForTheOthers) {
  RoundTable table = ThreeSites(QuorumRules(2));
  EXPECT_EQ(table.Phase(0), RoundPhase::kIdle);
  EXPECT_EQ(table.RoundReason(0), "");
  EXPECT_THAT(Contribute(table, "c", 0, 0), IsEmpty());
  EXPECT_EQ(table.Phase(0), RoundPhase::kOpen);
  EXPECT_EQ(table.RoundReason(0), "1 of 2 for a quorum; waiting for a, b");
  const auto closed = Closed(Contribute(table, "a", 0, 0));
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].base, 0);
  EXPECT_THAT(Names(closed[0]), ElementsAre("a", "c"));
  EXPECT_THAT(closed[0].sites, ElementsAre("a", "b", "c"));
  EXPECT_EQ(closed[0].reason, "quorum of 2");
}

TEST(Quorum, LateContributionJoinsTheOpenRoundWithItsOwnBase) {
  RoundTable table = ThreeSites(QuorumRules(2));
  Contribute(table, "a", 0, 0);
  Contribute(table, "b", 0, 0);
  Contribute(table, "c", 0, 0);  // version 1 is open
  const auto closed = Closed(Contribute(table, "a", 0, 1));
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].base, 1);
  ASSERT_THAT(Names(closed[0]), ElementsAre("a", "c"));
  EXPECT_EQ(closed[0].contributors[0].base, 1);
  EXPECT_EQ(closed[0].contributors[1].base, 0);
  EXPECT_THAT(table.state().sites.at("c").last_merged, ElementsAre(0));
  EXPECT_EQ(Check(table, "c", 0, 0), absl::AlreadyExistsError("merged already"));
}

TEST(Quorum, ContributionBehindMaxStalenessIsRefusedWithTheNumbers) {
  RoundTable table = ThreeSites(QuorumRules(2));
  for (core::Version base = 0; base < 2; ++base) {
    Contribute(table, "a", 0, base);
    Contribute(table, "b", 0, base);
  }
  const absl::Status status = Check(table, "c", 0, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(),
            "the contribution to fragment 0 is of base version 0, 2 behind version 2; at most 1 is allowed "
            "(max_staleness)");
  EXPECT_TRUE(Check(table, "c", 0, 1).ok());
  EXPECT_THAT(Check(table, "c", 0, 3).message(), HasSubstr("is of base version 2, the contribution is of 3"));
}

TEST(Quorum, SecondUnresolvedContributionOfASiteIsRefused) {
  RoundTable table = ThreeSites(QuorumRules(2));
  Contribute(table, "a", 0, 0);
  Contribute(table, "b", 0, 0);
  Contribute(table, "c", 0, 0);
  EXPECT_EQ(Check(table, "c", 0, 0), absl::AlreadyExistsError("admitted already"));
  const absl::Status status = Check(table, "c", 0, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(), "one unresolved contribution for each site and fragment: base 0 waits to be merged");
}

TEST(Quorum, WeightsAreThoseOfTheRule) {
  const auto weights = [](core::WeightRule rule) {
    RoundRules rules = QuorumRules(2);
    rules.membership.weights = rule;
    RoundTable table = ThreeSites(rules);
    Contribute(table, "a", 0, 0, 0, /*tokens=*/300, /*steps=*/10);
    return Weights(Closed(Contribute(table, "b", 0, 0, 0, /*tokens=*/100, /*steps=*/20))[0]);
  };
  EXPECT_THAT(weights(core::WeightRule::kUniform), ElementsAre(1, 1));
  EXPECT_THAT(weights(core::WeightRule::kTokens), ElementsAre(300, 100));
  EXPECT_THAT(weights(core::WeightRule::kTokensSquaredPerStep), ElementsAre(9000, 500));
}

TEST(Quorum, ContributionThatCountsNothingHasNoWeight) {
  RoundRules rules = QuorumRules(2);
  EXPECT_TRUE(Check(ThreeSites(rules), "a", 0, 0, /*tokens=*/0, /*steps=*/0).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Check(ThreeSites(rules), "a", 0, 0, /*tokens=*/-1, /*steps=*/1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Check(ThreeSites(rules), "a", 0, 0, /*tokens=*/1, /*steps=*/-1)));
  for (core::WeightRule rule : {core::WeightRule::kTokens, core::WeightRule::kTokensSquaredPerStep}) {
    rules.membership.weights = rule;
    const RoundTable table = ThreeSites(rules);
    EXPECT_TRUE(Check(table, "a", 0, 0, 1, 1).ok());
    EXPECT_THAT(Check(table, "a", 0, 0, 0, 1).message(), HasSubstr("at least one token and one step, got 0 tokens"));
    EXPECT_TRUE(absl::IsInvalidArgument(Check(table, "a", 0, 0, 1, 0)));
  }
}

TEST(Grace, WaitsForTheOthersAndSaysForWhom) {
  RoundRules rules = QuorumRules(2);
  rules.membership.grace_ms = 120;
  RoundTable table = ThreeSites(rules);
  Contribute(table, "a", 0, 0, 1000);
  EXPECT_THAT(Contribute(table, "b", 0, 0, 1050), IsEmpty());
  EXPECT_EQ(table.Phase(0), RoundPhase::kGrace);
  EXPECT_EQ(table.RoundReason(0), "grace of 120 ms for c");
  EXPECT_THAT(table.Tick(1169), IsEmpty());
  const auto closed = Closed(table.Tick(1170));
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(Names(closed[0]), ElementsAre("a", "b"));
  EXPECT_EQ(closed[0].reason, "quorum of 2, and the grace of 120 ms is over");
}

TEST(Grace, EndsWhenNobodyIsLeftToCome) {
  RoundRules rules = QuorumRules(2);
  rules.membership.grace_ms = 120;
  RoundTable table = ThreeSites(rules);
  Contribute(table, "a", 0, 0);
  Contribute(table, "b", 0, 0);
  const auto all = Closed(Contribute(table, "c", 0, 0));
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].reason, "all 3 active sites have contributed");
  Contribute(table, "a", 0, 1);
  Contribute(table, "b", 0, 1);
  const auto left = Closed(LeaveRun(table, "c"));
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_EQ(left[0].reason, "all 2 active sites have contributed");
}

TEST(Grace, IsWhatTheDelayLeavesOfTimeToQuorumAndTransfer) {
  RoundRules rules = QuorumRules(2);  // τ = 5
  rules.membership.grace_ms = 100'000;
  RoundTable table = ThreeSites(rules);
  Steps(table, {"a", "b"}, 1000);
  ASSERT_TRUE(Check(table, "a", 0, 0).ok());
  table.Admit("a", 0, {.base = 0}, /*transfer_ms=*/50, 1000);
  table.Admit("b", 0, {.base = 0}, /*transfer_ms=*/50, 1100);
  // 0.8 · (5 · 100 − 100 − 50)
  EXPECT_EQ(table.RoundReason(0), "grace of 280 ms for c");
  EXPECT_THAT(Closed(table.Tick(1379)), IsEmpty());
  EXPECT_THAT(Closed(table.Tick(1380)), SizeIs(1));
}

TEST(Grace, BeginsAnewAfterARestart) {
  RoundRules rules = QuorumRules(2);
  rules.membership.grace_ms = 120;
  RoundTable before = ThreeSites(rules);
  Contribute(before, "a", 0, 0);
  Contribute(before, "b", 0, 0, 10);
  RoundTable table(rules, before.state(), 5000);
  EXPECT_EQ(table.RoundReason(0), "grace of 120 ms for c");
  EXPECT_THAT(Closed(table.Tick(5119)), IsEmpty());
  EXPECT_THAT(Closed(table.Tick(5120)), SizeIs(1));
}

TEST(Distance, RoundsKeepTheSitesOwnPace) {
  RoundTable table(QuorumRules(2, /*num_fragments=*/2), {}, 0);  // H = 10
  for (const char* site : {"a", "b", "c"}) Arrive(table, site);
  Steps(table, {"a", "b", "c"}, 1000);
  for (core::FragmentId p : {0, 1}) {
    Contribute(table, "a", p, 0, 1000);
    Contribute(table, "b", p, 0, 1000);
  }
  EXPECT_THAT(table.state().versions, ElementsAre(1, 0));
  EXPECT_EQ(table.RoundReason(1), "keeps its distance to the rounds before");
  EXPECT_EQ(table.Phase(1), RoundPhase::kGrace);
  EXPECT_THAT(Closed(table.Tick(1474)), IsEmpty());
  EXPECT_THAT(Closed(table.Tick(1475)), SizeIs(1));  // 0.95 · 10 · 100 / 2
  Contribute(table, "a", 0, 1, 1500);
  EXPECT_THAT(Contribute(table, "b", 0, 1, 1500), IsEmpty());
  EXPECT_THAT(Closed(table.Tick(1949)), IsEmpty());
  EXPECT_THAT(Closed(table.Tick(1950)), SizeIs(1));  // of the same fragment: 0.95 · 10 · 100
}

TEST(Distance, WhatAJoinerReportsBeforeItHasHeardOfItsPlaceIsNoPace) {
  RoundTable table(QuorumRules(1), {}, 0);  // H = 10
  Arrive(table, "a");
  Steps(table, {"a"}, 1000);
  Contribute(table, "a", 0, 0, 1000);
  ASSERT_THAT(Closed(Contribute(table, "a", 0, 1, 2000)), SizeIs(1));
  const auto entered = ActionsOf<Enter>(Arrive(table, "b", 2000));
  ASSERT_THAT(entered, SizeIs(1));
  const core::Step entry = entered[0].entry.step;
  ASSERT_GT(entry, 0);
  table.Heard("b", SessionOf("b"), {.step = 0}, 2010);
  table.Heard("b", SessionOf("b"), {.step = entry}, 2020);
  table.Heard("b", SessionOf("b"), {.step = entry + 1}, 2120);
  Contribute(table, "a", 0, 2, 2500);
  EXPECT_THAT(Closed(table.Tick(2949)), IsEmpty());
  EXPECT_THAT(Closed(table.Tick(2950)), SizeIs(1));  // 0.95 · 10 · 100: each of them takes 100 ms for a step
}

TEST(Distance, IsNotKeptWhenNobodyTrainsAnyMore) {
  RoundTable table(QuorumRules(2, 2), {}, 0);
  for (const char* site : {"a", "b"}) Arrive(table, site);
  Steps(table, {"a", "b"}, 1000);
  for (core::FragmentId p : {0, 1}) {
    Contribute(table, "a", p, 0, 1000);
    Contribute(table, "b", p, 0, 1000);
  }
  EXPECT_THAT(Closed(Complete(table, "a", 1001)), IsEmpty());
  EXPECT_THAT(Closed(Complete(table, "b", 1002)), SizeIs(1));
}

TEST(Ending, CompletingSiteIsNotWaitedFor) {
  RoundRules rules = QuorumRules(2);
  rules.membership.grace_ms = 120;
  RoundTable table = ThreeSites(rules);
  Contribute(table, "a", 0, 0);
  Contribute(table, "b", 0, 0);
  const auto closed = Closed(Complete(table, "c"));
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].reason, "nobody else is left who could contribute");
}

TEST(Ending, LastRoundsCloseBelowTheQuorum) {
  RoundTable table = ThreeSites(QuorumRules(3));
  Contribute(table, "a", 0, 0);
  EXPECT_THAT(Complete(table, "a"), IsEmpty());
  EXPECT_THAT(Complete(table, "b"), IsEmpty());
  EXPECT_EQ(table.RoundReason(0), "1 of 2 for a quorum; waiting for c");
  EXPECT_THAT(Closed(Complete(table, "c")), SizeIs(1));
}

TEST(Ending, DrainOfOneSiteLetsNoOtherTrainBelowTheQuorum) {
  RoundTable table(QuorumRules(2), {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Complete(table, "a");  // it drains, and waits for nothing
  EXPECT_THAT(Contribute(table, "b", 0, 0), IsEmpty());
  EXPECT_EQ(table.RoundReason(0), "1 of 2 for a quorum");
  LeaveRun(table, "a");
  EXPECT_EQ(table.run_state(), RunState::kPaused);
  EXPECT_EQ(table.Reason(), "1 site is active, 2 are needed (min_quorum)");
  EXPECT_EQ(table.RoundReason(0), "1 site is active, 2 are needed (min_quorum)");
}

TEST(Ending, SitesThatAreDrainedTogetherAllComeToTheirEnd) {
  RoundRules rules = Rules(8, 1, 0, 2);
  rules.membership.min_quorum = 2;
  RoundTable table(rules, {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "b", 0, 0);
  ASSERT_TRUE(table.StartDraining("a", "asked to").ok());
  ASSERT_TRUE(table.StartDraining("b", "asked to").ok());
  EXPECT_THAT(Closed(LeaveRun(table, "a")), SizeIs(1));  // b would wait for this update for ever
}

TEST(Ending, FinishedRunGoesOnWithWhoIsLeft) {
  RoundTable table = ThreeSites(QuorumRules(2));
  LeaveRun(table, "a", /*finished=*/true);
  LeaveRun(table, "b", /*finished=*/true);
  EXPECT_EQ(table.run_state(), RunState::kTraining);
  EXPECT_THAT(Closed(Contribute(table, "c", 0, 0)), SizeIs(1));
}

TEST(BelowQuorum, NoRoundClosesUntilAnotherSiteJoins) {
  RoundTable table(QuorumRules(2), {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 0, 0);
  LeaveRun(table, "b");
  EXPECT_EQ(table.run_state(), RunState::kPaused);
  EXPECT_FALSE(table.held());  // the sites train on
  EXPECT_THAT(Closed(table.Tick(100)), IsEmpty());
  Arrive(table, "c");
  EXPECT_EQ(table.run_state(), RunState::kTraining);
  EXPECT_THAT(Names(Closed(Contribute(table, "c", 0, 0))[0]), ElementsAre("a", "c"));
}

TEST(BelowQuorum, SynchronousRunWaitsToo) {
  RoundRules rules = Rules(8, 1, 0, 2);
  rules.membership.min_quorum = 2;
  RoundTable table(rules, {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  EXPECT_THAT(Contribute(table, "a", 0, 0), IsEmpty());
  EXPECT_THAT(Closed(LeaveRun(table, "b")), IsEmpty());
  EXPECT_EQ(table.Reason(), "1 site is active, 2 are needed (min_quorum)");
  Arrive(table, "c");
  EXPECT_THAT(Names(Closed(Contribute(table, "c", 0, 0))[0]), ElementsAre("a", "c"));
}

TEST(QuorumJoin, EntersAtTheOpenVersionsAtOnce) {
  RoundTable table(QuorumRules(1, 2), {}, 0);
  Arrive(table, "a");
  Contribute(table, "a", 1, 0);
  const auto entered = ActionsOf<Enter>(Arrive(table, "b"));
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].entry.step, 10);  // fragment 1 is sent at 10
  EXPECT_THAT(entered[0].entry.versions, ElementsAre(0, 1));
  EXPECT_THAT(entered[0].entry.first_versions, ElementsAre(0, 1));
}

TEST(QuorumJoin, TellsWhatWasAdmittedInWhateverStay) {
  RoundTable table(QuorumRules(2, 2), {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 0, 0);
  Contribute(table, "b", 0, 0);
  Contribute(table, "a", 0, 1);
  LeaveRun(table, "a");
  const JoinDecision decision = table.Join({.site = "a", .session = "a-2", .held = {}}, 0);
  ASSERT_TRUE(decision.accepted);
  EXPECT_THAT(decision.last_admitted, ElementsAre(1, -1));
  const auto entered = ActionsOf<Enter>(table.Ready("a", "a-2"));
  EXPECT_THAT(entered[0].entry.first_versions, ElementsAre(2, 0));
  EXPECT_THAT(table.Join({.site = "b", .session = "b-1", .held = {1, 0}}, 0).last_admitted, ElementsAre(0, -1));
  // What was on its way from the earlier stay is told the truth, or it would be contributed again.
  EXPECT_EQ(Check(table, "a", 0, 1), absl::AlreadyExistsError("admitted already"));
  EXPECT_EQ(Check(table, "a", 0, 0), absl::AlreadyExistsError("merged already"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(table, "a", 1, 0)));
}

TEST(QuorumJoin, FromACheckpointDropsTheEarlierStay) {
  RoundTable table(QuorumRules(2), {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 0, 0);
  const JoinDecision back = table.Join({.site = "a", .session = "a-1", .held = {0}, .from_checkpoint = true}, 0);
  EXPECT_TRUE(back.accepted);
  EXPECT_FALSE(back.resumed);
  EXPECT_THAT(back.last_admitted, ElementsAre(0));
  const auto dropped = ActionsOf<Dropped>(back.actions);
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped[0].reason, "goes on from a checkpoint");
  EXPECT_THAT(ActionsOf<Enter>(table.Ready("a", "a-1"))[0].entry.first_versions, ElementsAre(1));
  EXPECT_THAT(Names(Closed(Contribute(table, "b", 0, 0))[0]), ElementsAre("a", "b"));
}

TEST(QuorumJoin, FromACheckpointResumesASynchronousRun) {
  RoundTable table(Rules(), {}, 0);
  Arrive(table, "a");
  const JoinDecision back = table.Join({.site = "a", .session = "a-1", .held = {0}, .from_checkpoint = true}, 0);
  EXPECT_TRUE(back.resumed);
  EXPECT_THAT(back.actions, IsEmpty());
}

}  // namespace
}  // namespace causeway::server
