// Quorum mode: when a round closes, what may join it, what it weighs.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<CloseRound> Closed(const Actions& actions) { return ActionsOf<CloseRound>(actions); }

RulesForTest ThreeSites(const RoundSettings& rules) { return TableOf({"a", "b", "c"}, rules); }

RoundSettings GraceRules(int64_t grace_ms) {
  RoundSettings rules = QuorumRules(2);
  rules.membership.grace_ms = grace_ms;
  return rules;
}

// Synchronous, and no round of fewer than two sites.
RoundSettings SynchronousRules() {
  RoundSettings rules = Rules(8, 1, 0, 2);
  rules.membership.min_quorum = 2;
  return rules;
}

// The sites do three steps of 100 ms each until `until_ms`, and report each.
void Steps(RulesForTest& table, const std::vector<core::SiteId>& sites, int64_t until_ms) {
  for (int step = 0; step <= 3; ++step) {
    for (const core::SiteId& site : sites) {
      table.Heard(site, SessionOf(site), {.step = step}, until_ms - (3 - step) * 100);
    }
  }
}

TEST(Quorum, ClosesARoundWithoutWaitingForTheOthers) {
  RulesForTest table = ThreeSites(QuorumRules(2));
  EXPECT_EQ(table.Phase(0), RoundPhase::kIdle);
  EXPECT_EQ(table.RoundReason(0), "");
  EXPECT_THAT(Contribute(table, "c", 0, 0), IsEmpty());
  EXPECT_EQ(table.Phase(0), RoundPhase::kOpen);
  EXPECT_EQ(table.RoundReason(0), "1 of 2 for a quorum; waiting for a, b");
  const auto closed = Only<CloseRound>(Contribute(table, "a", 0, 0));
  EXPECT_EQ(closed.base, 0);
  EXPECT_THAT(Names(closed), ElementsAre("a", "c"));
  EXPECT_THAT(closed.sites, ElementsAre("a", "b", "c"));
  EXPECT_EQ(closed.reason, "quorum of 2");
}

TEST(Quorum, LateContributionJoinsTheOpenRoundWithItsOwnBase) {
  RulesForTest table = ThreeSites(QuorumRules(2));
  ContributeEach(table, {"a", "b", "c"}, 0, 0);  // version 1 is open
  const auto closed = Only<CloseRound>(Contribute(table, "a", 0, 1));
  EXPECT_EQ(closed.base, 1);
  ASSERT_THAT(Names(closed), ElementsAre("a", "c"));
  EXPECT_EQ(closed.contributors[0].base, 1);
  EXPECT_EQ(closed.contributors[1].base, 0);
  EXPECT_THAT(table.state().sites.at("c").last_merged, ElementsAre(0));
  EXPECT_EQ(Check(table, "c", 0, 0), absl::AlreadyExistsError("merged already"));
}

TEST(Quorum, ContributionBehindMaxStalenessIsRefusedWithTheNumbers) {
  RulesForTest table = ThreeSites(QuorumRules(2));
  for (core::Version base = 0; base < 2; ++base) ContributeEach(table, {"a", "b"}, 0, base);
  EXPECT_EQ(Check(table, "c", 0, 0),
            absl::FailedPreconditionError("the contribution to fragment 0 is of base version 0, 2 behind version 2; at "
                                          "most 1 is allowed (max_staleness)"));
  EXPECT_TRUE(Check(table, "c", 0, 1).ok());
  EXPECT_THAT(Check(table, "c", 0, 3).message(), HasSubstr("is of base version 2, the contribution is of 3"));
}

TEST(Quorum, SecondUnresolvedContributionOfASiteIsRefused) {
  RulesForTest table = ThreeSites(QuorumRules(2));
  ContributeEach(table, {"a", "b", "c"}, 0, 0);
  EXPECT_EQ(Check(table, "c", 0, 0), absl::AlreadyExistsError("admitted already"));
  EXPECT_EQ(Check(table, "c", 0, 1),
            absl::FailedPreconditionError(
                "one unresolved contribution for each site and fragment: base 0 waits to be merged"));
}

TEST(Quorum, WeightsAreThoseOfTheRule) {
  const auto weights = [](core::WeightRule rule) {
    RoundSettings rules = QuorumRules(2);
    rules.membership.weights = rule;
    RulesForTest table = ThreeSites(rules);
    Contribute(table, "a", 0, 0, 0, /*tokens=*/300, /*steps=*/10);
    return Weights(Only<CloseRound>(Contribute(table, "b", 0, 0, 0, /*tokens=*/100, /*steps=*/20)));
  };
  EXPECT_THAT(weights(core::WeightRule::kUniform), ElementsAre(1, 1));
  EXPECT_THAT(weights(core::WeightRule::kTokens), ElementsAre(300, 100));
  EXPECT_THAT(weights(core::WeightRule::kTokensSquaredPerStep), ElementsAre(9000, 500));
}

TEST(Quorum, ContributionThatCountsNothingHasNoWeight) {
  RoundSettings rules = QuorumRules(2);
  EXPECT_TRUE(Check(ThreeSites(rules), "a", 0, 0, /*tokens=*/0, /*steps=*/0).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Check(ThreeSites(rules), "a", 0, 0, /*tokens=*/-1, /*steps=*/1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Check(ThreeSites(rules), "a", 0, 0, /*tokens=*/1, /*steps=*/-1)));
  for (core::WeightRule rule : {core::WeightRule::kTokens, core::WeightRule::kTokensSquaredPerStep}) {
    rules.membership.weights = rule;
    const RulesForTest table = ThreeSites(rules);
    EXPECT_TRUE(Check(table, "a", 0, 0, 1, 1).ok());
    EXPECT_THAT(Check(table, "a", 0, 0, 0, 1).message(), HasSubstr("at least one token and one step, got 0 tokens"));
    EXPECT_TRUE(absl::IsInvalidArgument(Check(table, "a", 0, 0, 1, 0)));
  }
}

TEST(Grace, WaitsForTheOthersAndSaysForWhom) {
  RulesForTest table = ThreeSites(GraceRules(120));
  Contribute(table, "a", 0, 0, 1000);
  EXPECT_THAT(Contribute(table, "b", 0, 0, 1050), IsEmpty());
  EXPECT_EQ(table.Phase(0), RoundPhase::kGrace);
  EXPECT_EQ(table.RoundReason(0), "grace of 120 ms for c");
  EXPECT_THAT(table.Tick(1169), IsEmpty());
  const auto closed = Only<CloseRound>(table.Tick(1170));
  EXPECT_THAT(Names(closed), ElementsAre("a", "b"));
  EXPECT_EQ(closed.reason, "quorum of 2, and the grace of 120 ms is over");
}

TEST(Grace, EndsWhenNobodyIsLeftToCome) {
  RulesForTest table = ThreeSites(GraceRules(120));
  const Actions all = ContributeEach(table, {"a", "b", "c"}, 0, 0);
  EXPECT_EQ(Only<CloseRound>(all).reason, "all 3 active sites have contributed");
  ContributeEach(table, {"a", "b"}, 0, 1);
  EXPECT_EQ(Only<CloseRound>(LeaveRun(table, "c")).reason, "all 2 active sites have contributed");
}

TEST(Grace, IsWhatTheDelayLeavesOfTimeToQuorumAndTransfer) {
  RulesForTest table = ThreeSites(GraceRules(100'000));  // τ = 5
  Steps(table, {"a", "b"}, 1000);
  ASSERT_TRUE(Check(table, "a", 0, 0).ok());
  table.Admit("a", 0, {.base = 0}, /*transfer_ms=*/50, 1000);
  table.Admit("b", 0, {.base = 0}, /*transfer_ms=*/50, 1100);
  EXPECT_EQ(table.RoundReason(0), "grace of 280 ms for c");  // 0.8 · (5 · 100 − 100 − 50)
  EXPECT_TRUE(HappensAt<CloseRound>(table, 1380));
}

TEST(Grace, BeginsAnewAfterARestart) {
  RulesForTest before = ThreeSites(GraceRules(120));
  Contribute(before, "a", 0, 0);
  Contribute(before, "b", 0, 0, 10);
  RulesForTest table(GraceRules(120), before.state(), 5000);
  EXPECT_EQ(table.RoundReason(0), "grace of 120 ms for c");
  EXPECT_TRUE(HappensAt<CloseRound>(table, 5120));
}

TEST(Distance, RoundsKeepTheSitesOwnPace) {
  RulesForTest table = ThreeSites(QuorumRules(2, /*num_fragments=*/2));  // H = 10
  Steps(table, {"a", "b", "c"}, 1000);
  for (core::FragmentId p : {0, 1}) ContributeEach(table, {"a", "b"}, p, 0, 1000);
  EXPECT_THAT(table.state().versions, ElementsAre(1, 0));
  EXPECT_EQ(table.RoundReason(1), "keeps its distance to the rounds before");
  EXPECT_EQ(table.Phase(1), RoundPhase::kGrace);
  EXPECT_TRUE(HappensAt<CloseRound>(table, 1475));  // 0.95 · 10 · 100 / 2
  EXPECT_THAT(ContributeEach(table, {"a", "b"}, 0, 1, 1500), IsEmpty());
  EXPECT_TRUE(HappensAt<CloseRound>(table, 1950));  // of the same fragment: 0.95 · 10 · 100
}

TEST(Distance, WhatAJoinerReportsBeforeItHasHeardOfItsPlaceIsNoPace) {
  RulesForTest table = TableOf({"a"}, QuorumRules(1));  // H = 10
  Steps(table, {"a"}, 1000);
  Contribute(table, "a", 0, 0, 1000);
  ASSERT_THAT(Closed(Contribute(table, "a", 0, 1, 2000)), SizeIs(1));
  const core::Step entry = Only<Enter>(Arrive(table, "b", 2000)).entry.step;
  ASSERT_GT(entry, 0);
  table.Heard("b", SessionOf("b"), {.step = 0}, 2010);
  table.Heard("b", SessionOf("b"), {.step = entry}, 2020);
  table.Heard("b", SessionOf("b"), {.step = entry + 1}, 2120);
  Contribute(table, "a", 0, 2, 2500);
  EXPECT_TRUE(HappensAt<CloseRound>(table, 2950));  // 0.95 · 10 · 100: each of them takes 100 ms for a step
}

TEST(Distance, IsNotKeptWhenNobodyTrainsAnyMore) {
  RulesForTest table = TableOf({"a", "b"}, QuorumRules(2, 2));
  Steps(table, {"a", "b"}, 1000);
  for (core::FragmentId p : {0, 1}) ContributeEach(table, {"a", "b"}, p, 0, 1000);
  EXPECT_THAT(Closed(Complete(table, "a", 1001)), IsEmpty());
  EXPECT_THAT(Closed(Complete(table, "b", 1002)), SizeIs(1));
}

TEST(Ending, CompletingSiteIsNotWaitedFor) {
  RulesForTest table = ThreeSites(GraceRules(120));
  ContributeEach(table, {"a", "b"}, 0, 0);
  EXPECT_EQ(Only<CloseRound>(Complete(table, "c")).reason, "no other site is left that could contribute");
}

TEST(Ending, LastRoundsCloseBelowTheQuorum) {
  RulesForTest table = ThreeSites(QuorumRules(3));
  Contribute(table, "a", 0, 0);
  EXPECT_THAT(Complete(table, "a"), IsEmpty());
  EXPECT_THAT(Complete(table, "b"), IsEmpty());
  EXPECT_EQ(table.RoundReason(0), "1 of 2 for a quorum; waiting for c");
  EXPECT_THAT(Closed(Complete(table, "c")), SizeIs(1));
}

TEST(Ending, DrainOfOneSiteLetsNoOtherTrainBelowTheQuorum) {
  RulesForTest table = TableOf({"a", "b"}, QuorumRules(2));
  Complete(table, "a");  // it drains, and waits for nothing
  EXPECT_THAT(Contribute(table, "b", 0, 0), IsEmpty());
  EXPECT_EQ(table.RoundReason(0), "1 of 2 for a quorum");
  LeaveRun(table, "a");
  EXPECT_EQ(table.run_state(), RunState::kPaused);
  EXPECT_EQ(table.Reason(), "1 site is active, 2 are needed (min_quorum)");
  EXPECT_EQ(table.RoundReason(0), "1 site is active, 2 are needed (min_quorum)");
}

TEST(Ending, SitesThatAreDrainedTogetherAllComeToTheirEnd) {
  RulesForTest table = TableOf({"a", "b"}, SynchronousRules());
  Contribute(table, "b", 0, 0);
  ASSERT_TRUE(table.StartDraining("a", "asked to").ok());
  ASSERT_TRUE(table.StartDraining("b", "asked to").ok());
  EXPECT_THAT(Closed(LeaveRun(table, "a")), SizeIs(1));  // b would wait for this update for ever
}

TEST(Ending, FinishedRunGoesOnWithWhoIsLeft) {
  RulesForTest table = ThreeSites(QuorumRules(2));
  LeaveRun(table, "a", /*finished=*/true);
  LeaveRun(table, "b", /*finished=*/true);
  EXPECT_EQ(table.run_state(), RunState::kTraining);
  EXPECT_THAT(Closed(Contribute(table, "c", 0, 0)), SizeIs(1));
}

TEST(BelowQuorum, NoRoundClosesUntilAnotherSiteJoins) {
  RulesForTest table = TableOf({"a", "b"}, QuorumRules(2));
  Contribute(table, "a", 0, 0);
  LeaveRun(table, "b");
  EXPECT_EQ(table.run_state(), RunState::kPaused);
  EXPECT_FALSE(table.held());  // the sites train on
  EXPECT_THAT(Closed(table.Tick(100)), IsEmpty());
  Arrive(table, "c");
  EXPECT_EQ(table.run_state(), RunState::kTraining);
  EXPECT_THAT(Names(Only<CloseRound>(Contribute(table, "c", 0, 0))), ElementsAre("a", "c"));
}

TEST(BelowQuorum, SynchronousRunWaitsToo) {
  RulesForTest table = TableOf({"a", "b"}, SynchronousRules());
  EXPECT_THAT(Contribute(table, "a", 0, 0), IsEmpty());
  EXPECT_THAT(Closed(LeaveRun(table, "b")), IsEmpty());
  EXPECT_EQ(table.Reason(), "1 site is active, 2 are needed (min_quorum)");
  Arrive(table, "c");
  EXPECT_THAT(Names(Only<CloseRound>(Contribute(table, "c", 0, 0))), ElementsAre("a", "c"));
}

TEST(QuorumJoin, EntersAtTheOpenVersionsAtOnce) {
  RulesForTest table = TableOf({"a"}, QuorumRules(1, 2));
  Contribute(table, "a", 1, 0);
  const core::Entry entry = Only<Enter>(Arrive(table, "b")).entry;
  EXPECT_EQ(entry.step, 10);  // fragment 1 is sent at 10
  EXPECT_THAT(entry.versions, ElementsAre(0, 1));
  EXPECT_THAT(entry.first_versions, ElementsAre(0, 1));
}

TEST(QuorumJoin, TellsWhatWasAdmittedInWhateverStay) {
  RulesForTest table = TableOf({"a", "b"}, QuorumRules(2, 2));
  ContributeEach(table, {"a", "b"}, 0, 0);
  Contribute(table, "a", 0, 1);
  LeaveRun(table, "a");
  const auto decision = table.Join({.site = "a", .session = "a-2", .held = {}}, 0);
  ASSERT_TRUE(decision.accepted);
  EXPECT_THAT(decision.last_admitted, ElementsAre(1, -1));
  EXPECT_THAT(Only<Enter>(table.Ready("a", "a-2")).entry.first_versions, ElementsAre(2, 0));
  EXPECT_THAT(table.Join({.site = "b", .session = "b-1", .held = {1, 0}}, 0).last_admitted, ElementsAre(0, -1));
  // Contributions on their way from the earlier stay get the true answer, or they would be sent again.
  EXPECT_EQ(Check(table, "a", 0, 1), absl::AlreadyExistsError("admitted already"));
  EXPECT_EQ(Check(table, "a", 0, 0), absl::AlreadyExistsError("merged already"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(table, "a", 1, 0)));
}

TEST(QuorumJoin, FromACheckpointDropsTheEarlierStay) {
  RulesForTest table = TableOf({"a", "b"}, QuorumRules(2));
  Contribute(table, "a", 0, 0);
  const auto back = table.Join({.site = "a", .session = "a-1", .held = {0}, .from_checkpoint = true}, 0);
  EXPECT_TRUE(back.accepted);
  EXPECT_FALSE(back.resumed);
  EXPECT_THAT(back.last_admitted, ElementsAre(0));
  EXPECT_EQ(Only<Dropped>(back.actions).reason, "goes on from a checkpoint");
  EXPECT_THAT(Only<Enter>(table.Ready("a", "a-1")).entry.first_versions, ElementsAre(1));
  EXPECT_THAT(Names(Only<CloseRound>(Contribute(table, "b", 0, 0))), ElementsAre("a", "b"));
}

TEST(QuorumJoin, FromACheckpointResumesASynchronousRun) {
  RulesForTest table = TableOf({"a"});
  const auto back = table.Join({.site = "a", .session = "a-1", .held = {0}, .from_checkpoint = true}, 0);
  EXPECT_TRUE(back.resumed);
  EXPECT_THAT(back.actions, IsEmpty());
}

}  // namespace
}  // namespace causeway::server
