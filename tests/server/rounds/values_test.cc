// Which contributions the rules take, by their length and by what they count, and what each weighs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/rounds/value_gate.h"
#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;
using testing::SizeIs;

constexpr int64_t kParameters = 100;
constexpr int64_t kStepsOfARound = 8;

RoundSettings GatedRules(int sites) {
  RoundSettings rules = Rules(kStepsOfARound, /*num_fragments=*/1, /*delay=*/0, /*min_sites=*/sites);
  rules.values.gate = 8;
  return rules;
}

core::Admitted Sent(core::Version base, double norm, int64_t steps = kStepsOfARound, int64_t tokens = 80) {
  return {.base = base, .tokens = tokens, .steps = steps, .norm = norm};
}

class Values : public testing::Test {
 protected:
  void Start(const RoundSettings& rules, const std::vector<core::SiteId>& sites) {
    table_.emplace(rules, core::RoundState(), 0);
    for (const core::SiteId& site : sites) Arrive(*table_, site);
  }

  // As the coordinator does it; why it was refused.
  std::optional<std::string> Send(const core::SiteId& site, const core::Admitted& sent) {
    const absl::Status status = table_->CheckContribution(site, SessionOf(site), 0, sent);
    if (!status.ok()) return std::string(status.message());
    if (const auto why = table_->WhyTooLong(site, 0, sent, kParameters)) {
      last_ = table_->RefuseValues(site, 0, sent, *why, /*now_ms=*/0);
      return why;
    }
    last_ = table_->Admit(site, 0, sent, /*transfer_ms=*/0, /*now_ms=*/0, kParameters);
    return std::nullopt;
  }

  void Round(const std::vector<core::SiteId>& sites, double norm) {
    const core::Version base = version();
    for (const core::SiteId& site : sites) ASSERT_EQ(Send(site, Sent(base, norm)), std::nullopt);
    ASSERT_EQ(version(), base + 1);
  }

  core::Version version() const { return table_->state().versions[0]; }
  const core::SiteRecord& Record(const core::SiteId& site) const { return table_->state().sites.at(site); }

  std::optional<RulesForTest> table_;
  Actions last_;
};

TEST_F(Values, OneThatIsLongerThanTheGateIsRefusedAndTheRoundDoesNotExpectIt) {
  Start(GatedRules(2), {"eu", "us"});
  for (int i = 0; i < 3; ++i) Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("us", Sent(3, 1.0)), std::nullopt);
  const auto why = Send("eu", Sent(3, 8.5));
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(*why, "norm 8.5 is 8.5 times the longest of 3 rounds; at most 8 are taken (values.gate)");
  const auto closed = ActionsOf<CloseRound>(last_);
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(closed[0].contributors, SizeIs(1));
  EXPECT_EQ(Record("eu").refusals, 1);
  EXPECT_EQ(Send("eu", Sent(4, 8.0)), std::nullopt);
  EXPECT_EQ(Record("eu").refusals, 0);
}

TEST_F(Values, ARefusedOneIsRefusedAgainAndCountsOnce) {
  Start(GatedRules(2), {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  ASSERT_TRUE(Send("eu", Sent(1, 100.0)).has_value());
  EXPECT_THAT(Send("eu", Sent(1, 1.0)).value_or(""), HasSubstr("norm 1e+02 is 1e+02 times the longest of 1 round"));
  EXPECT_EQ(Record("eu").refusals, 1);
}

TEST_F(Values, ThreeRefusalsInARowAreAQuarantineThatOnlyAnOperatorEnds) {
  Start(GatedRules(3), {"asia", "eu", "us"});
  Round({"asia", "eu", "us"}, 1.0);
  for (int i = 0; i < 3; ++i) {
    const core::Version base = version();
    ASSERT_TRUE(Send("eu", Sent(base, 1e30)).has_value());
    for (const char* site : {"asia", "us"}) ASSERT_EQ(Send(site, Sent(base, 1.0)), std::nullopt);
  }
  EXPECT_TRUE(Record("eu").quarantined);
  EXPECT_THAT(Record("eu").reason, HasSubstr("3 contributions in a row were refused"));
  EXPECT_THAT(Send("eu", Sent(version(), 1.0)).value_or(""), HasSubstr("causewayctl release --site=eu"));
  Round({"asia", "us"}, 1.0);  // which does not wait for it

  Actions actions;
  EXPECT_EQ(table_->Release("us", actions, 0).message(), "site us is not in quarantine");
  EXPECT_EQ(table_->Release("mars", actions, 0).message(), "the run has no site mars");
  ASSERT_TRUE(table_->Release("eu", actions, 0).ok());
  EXPECT_THAT(ActionsOf<Dropped>(actions), SizeIs(1));
  // The Welcome says that what it holds is void, also if it did not hear of it the first time.
  for (int i = 0; i < 2; ++i) {
    const auto joined = table_->Join({.site = "eu", .session = SessionOf("eu"), .held = {1}}, 0);
    ASSERT_TRUE(joined.accepted);
    EXPECT_TRUE(joined.forgotten);
  }
  table_->Ready("eu", SessionOf("eu"));
  EXPECT_FALSE(table_->Join({.site = "eu", .session = SessionOf("eu"), .held = {1}}, 0).forgotten);
  Round({"asia", "eu", "us"}, 1.0);
}

TEST_F(Values, ARunOfWhichAllSitesAreInQuarantineIsPausedAndSaysSo) {
  Start(GatedRules(1), {"eu"});
  Round({"eu"}, 1.0);
  while (!Record("eu").quarantined) {
    ASSERT_TRUE(Send("eu", Sent(1, 1e30)).has_value());
    if (Record("eu").state == core::SiteState::kGone) Arrive(*table_, "eu");  // it was all that the round had
  }
  EXPECT_EQ(table_->run_state(), RunState::kPaused);
  EXPECT_THAT(table_->Reason(), HasSubstr("in quarantine"));
}

TEST_F(Values, ALoneSiteThatBeginsAnewIsComparedWithItsPresentStayAlone) {
  Start(GatedRules(1), {"eu"});
  for (int i = 0; i < 3; ++i) Round({"eu"}, 1.0);
  LeaveRun(*table_, "eu");
  ASSERT_TRUE(table_->Join({.site = "eu", .session = "another process"}, 0).accepted);
  table_->Ready("eu", "another process");
  const auto send = [&](double norm) {
    const auto why = table_->WhyTooLong("eu", 0, Sent(version(), norm), kParameters);
    if (!why) table_->Admit("eu", 0, Sent(version(), norm), /*transfer_ms=*/0, /*now_ms=*/0, kParameters);
    return why;
  };
  EXPECT_THAT(send(81.0).value_or(""), HasSubstr("no round to compare it with yet"));
  EXPECT_EQ(send(20.0), std::nullopt) << "20 times the rounds of its last stay";
  EXPECT_EQ(send(15.0), std::nullopt);
  EXPECT_THAT(send(161.0).value_or(""), HasSubstr("times the longest of 2 rounds"));
}

TEST_F(Values, ASiteBesideOthersBeginsAnewUnderTheRoundsOfAll) {
  Start(GatedRules(2), {"eu", "us"});
  for (int i = 0; i < 3; ++i) Round({"eu", "us"}, 1.0);
  LeaveRun(*table_, "eu");
  ASSERT_TRUE(table_->Join({.site = "eu", .session = "another process"}, 0).accepted);
  table_->Ready("eu", "another process");
  EXPECT_THAT(table_->WhyTooLong("eu", 0, Sent(version(), 20.0), kParameters).value_or(""),
              HasSubstr("20 times the longest of 3 rounds"));
}

TEST_F(Values, ALoneSiteThatWasRefusedDoesNotComeAroundTheGateByJoiningAgain) {
  Start(GatedRules(1), {"eu"});
  for (int i = 0; i < 3; ++i) Round({"eu"}, 1.0);
  while (!Record("eu").quarantined) {
    ASSERT_TRUE(Send("eu", Sent(3, 20.0)).has_value());
    if (Record("eu").state == core::SiteState::kGone) Arrive(*table_, "eu");
  }
  EXPECT_EQ(Record("eu").refusals, 3);
}

TEST_F(Values, WithoutHistoryTheOthersOfTheRoundDecideFromThreeOn) {
  Start(GatedRules(4), {"asia", "eu", "mars", "us"});
  ASSERT_EQ(Send("asia", Sent(0, 0.1)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(0, 0.2)), std::nullopt);
  EXPECT_THAT(Send("eu", Sent(0, 0.9)).value_or(""), HasSubstr("norm 0.9 is 9 times the median of the 2 others"));
  EXPECT_EQ(Send("mars", Sent(0, 0.7)), std::nullopt);
}

TEST_F(Values, WithNothingToCompareWithAValueMovesByOneAtMostTimesTheGate) {
  Start(GatedRules(2), {"eu", "us"});
  EXPECT_EQ(Send("eu", Sent(0, 80.0)), std::nullopt);
  EXPECT_THAT(Send("us", Sent(0, 81.0)).value_or(""), HasSubstr("one that moves each value by 1"));
}

TEST_F(Values, MoreStepsMayMoveFurtherButNotMoreThanTheRoundsSinceAllow) {
  const core::NormsOfRounds history = {{1, {1.0}}, {2, {1.0}}};
  const auto ratio = [&](int64_t steps, core::Version rounds) {
    return BoundOf({.admitted = Sent(2, 6.0, steps), .rounds_since = rounds}, history, kStepsOfARound).Ratio(6.0);
  };
  EXPECT_DOUBLE_EQ(ratio(8, 1), 6);
  EXPECT_DOUBLE_EQ(ratio(4, 1), 6);  // a short one is not lengthened
  EXPECT_DOUBLE_EQ(ratio(16, 1), 3);
  EXPECT_DOUBLE_EQ(ratio(int64_t{1} << 60, 1), 3);
  EXPECT_DOUBLE_EQ(ratio(int64_t{1} << 60, 3), 1);
}

TEST_F(Values, HistoryIsOfSixteenRoundsAndComesBackWithTheState) {
  Start(GatedRules(1), {"eu"});
  for (int i = 0; i < 20; ++i) Round({"eu"}, 1.0 + 0.125 * i);
  const core::NormsOfRounds& history = table_->state().norms[0];
  ASSERT_THAT(history, SizeIs(16));
  EXPECT_EQ(history.front(), (core::RoundNorms{5, {1.5}}));
  EXPECT_EQ(history.back(), (core::RoundNorms{20, {3.375}}));
  RulesForTest again(GatedRules(1), table_->state(), 0);
  EXPECT_EQ(again.WhyTooLong("eu", 0, Sent(20, 100.0), kParameters),
            table_->WhyTooLong("eu", 0, Sent(20, 100.0), kParameters));
}

TEST_F(Values, WithoutAGateOneThatIsFarTooLongIsMergedAndShown) {
  RoundSettings rules = GatedRules(2);
  rules.values.gate = 0;
  Start(rules, {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("eu", Sent(1, 1e30)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(1, 1.0)), std::nullopt);
  ASSERT_THAT(table_->outliers(), SizeIs(1));
  EXPECT_EQ(table_->outliers()[0].site, "eu");
  EXPECT_EQ(table_->outliers()[0].text, "norm 1e+30 is 1e+30 times the longest of 1 round");
  for (int i = 0; i < 100; ++i) Round({"eu", "us"}, 1.0);
  EXPECT_THAT(table_->outliers(), SizeIs(1)) << "others of that length do not undo it";
}

TEST_F(Values, AnOutlierIsShownForAsManyRoundsAsTheOthersNeedToUndoIt) {
  RoundSettings rules = GatedRules(2);
  rules.values.gate = 0;
  for (const auto& [norm, rounds] : {std::pair(9.0, 16), std::pair(40.0, 40)}) {
    Start(rules, {"eu", "us"});
    Round({"eu", "us"}, 1.0);
    ASSERT_EQ(Send("eu", Sent(1, norm)), std::nullopt);
    ASSERT_EQ(Send("us", Sent(1, 1.0)), std::nullopt);
    for (int i = 1; i < rounds; ++i) Round({"eu", "us"}, 1.0);
    EXPECT_THAT(table_->outliers(), SizeIs(1)) << norm;
    Round({"eu", "us"}, 1.0);
    EXPECT_THAT(table_->outliers(), SizeIs(0)) << norm;
  }
}

TEST_F(Values, WithClipALongOneIsScaledDownToTheGate) {
  RoundSettings rules = GatedRules(2);
  rules.values.clip = true;
  Start(rules, {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("eu", Sent(1, 32.0)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(1, 1.0)), std::nullopt);
  const CloseRound closed = ActionsOf<CloseRound>(last_).at(0);
  EXPECT_FLOAT_EQ(closed.contributors[0].clip, 0.25f);
  EXPECT_EQ(closed.contributors[1].clip, 1.0f);
  EXPECT_THAT(closed.reason, HasSubstr("eu scaled by 0.25"));
  ASSERT_EQ(Send("eu", Sent(2, 32.0)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(2, 1.0)), std::nullopt);
  EXPECT_FLOAT_EQ(ActionsOf<CloseRound>(last_).at(0).contributors[0].clip, 0.25f) << "it has made no room for itself";
}

TEST_F(Values, AllSitesTogetherMayGrowInTheFirstRoundsAndNoSiteAlone) {
  Start(GatedRules(2), {"eu", "us"});
  for (const double norm : {1.0, 7.0, 49.0}) Round({"eu", "us"}, norm);
  table_.reset();
  Start(GatedRules(2), {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("us", Sent(1, 1.0)), std::nullopt);
  ASSERT_EQ(Send("eu", Sent(1, 7.0)), std::nullopt);
  EXPECT_THAT(Send("eu", Sent(2, 49.0)).value_or(""), HasSubstr("49 times the longest of 2 rounds"));
}

TEST_F(Values, SharesBeyondTheCapGoToTheOthersProRata) {
  const auto near = [](std::vector<double> expected) { return Pointwise(testing::DoubleNear(1e-12), expected); };
  EXPECT_THAT(CappedShares(std::vector{6.0, 3.0, 1.0}, 0.5), near({0.5, 0.375, 0.125}));
  EXPECT_THAT(CappedShares(std::vector{8.0, 1.0, 1.0}, 0.4), near({0.4, 0.3, 0.3}));
  EXPECT_THAT(CappedShares(std::vector{6.0, 3.5, 0.5}, 0.45), near({0.45, 0.45, 0.1}));  // the second only then
  EXPECT_THAT(CappedShares(std::vector{6.0, 3.0, 1.0}, 0.3), near({1 / 3.0, 1 / 3.0, 1 / 3.0}));
  EXPECT_THAT(CappedShares(std::vector{1.0, 1.0}, 0.9), near({0.5, 0.5}));
}

TEST_F(Values, ACappedWeightIsSaidInTheRoundsReason) {
  RoundSettings rules = GatedRules(2);
  rules.values.weight_cap = 0.6;
  rules.membership.weights = core::WeightRule::kTokens;
  Start(rules, {"eu", "us"});
  ASSERT_EQ(Send("eu", Sent(0, 1.0, 8, 90)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(0, 1.0, 8, 10)), std::nullopt);
  const CloseRound closed = ActionsOf<CloseRound>(last_).at(0);
  EXPECT_THAT(closed.reason, HasSubstr("eu 0.90, capped to 0.60"));
  EXPECT_NEAR(closed.contributors[0].weight, 0.6, 1e-12);
  EXPECT_NEAR(closed.contributors[1].weight, 0.4, 1e-12);
}

TEST_F(Values, TokensAreAtMostThoseOfTheSteps) {
  RoundSettings rules = GatedRules(1);
  rules.max_tokens_per_step = [](const core::SiteId&) { return 10; };
  Start(rules, {"eu"});
  EXPECT_EQ(
      Send("eu", Sent(0, 1.0, 8, 81)).value_or(""),
      "expected at most 10 tokens in each of 8 steps (run.yaml's batch, or membership.max_tokens_per_step), got 81");
  EXPECT_THAT(Send("eu", Sent(0, 1.0, 8, int64_t{1} << 62)).value_or(""), HasSubstr("got 4611686018427387904"));
  EXPECT_EQ(Send("eu", Sent(0, 1.0, 8, 80)), std::nullopt);
}

// A site that joins anew has trained on, and repeats steps; what it says is merged, and weighs as much as is possible.
TEST_F(Values, StepsBeyondThoseOfTheRoundsAreNotCounted) {
  RoundSettings rules = GatedRules(2);
  rules.membership.weights = core::WeightRule::kTokens;
  Start(rules, {"eu", "us"});
  ASSERT_EQ(Send("eu", Sent(0, 1.0, int64_t{1} << 40, int64_t{10} << 40)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(0, 1.0, 16, 160)), std::nullopt);
  const CloseRound closed = ActionsOf<CloseRound>(last_).at(0);
  EXPECT_EQ(closed.contributors[0].weight, closed.contributors[1].weight);
  EXPECT_THAT(closed.reason, HasSubstr("eu 1099511627776 steps, counted as 16"));
}

TEST_F(Values, ARollbackMakesVersionsRiseAndLetsAllJoinAnew) {
  RoundSettings rules = GatedRules(2);
  rules.values.gate = 0;
  Start(rules, {"eu", "us"});
  for (int i = 0; i < 3; ++i) Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("eu", Sent(3, 1e30)), std::nullopt);
  Actions actions;
  EXPECT_THAT(std::string(table_->RollBack(4, actions, 0).message()), HasSubstr("fragment 0 is at version 3"));
  ASSERT_TRUE(table_->RollBack(2, actions, 0).ok());
  const auto closed = ActionsOf<CloseRound>(actions);
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].rolled_back_to, 2);
  EXPECT_THAT(closed[0].contributors, SizeIs(0));
  EXPECT_EQ(version(), 4);
  EXPECT_THAT(table_->state().contributions[0], SizeIs(0));
  EXPECT_THAT(table_->state().norms[0], SizeIs(2));
  EXPECT_THAT(table_->outliers(), SizeIs(0));
  EXPECT_THAT(ActionsOf<Dropped>(actions), SizeIs(2));
  for (const char* site : {"eu", "us"}) {
    EXPECT_TRUE(table_->Join({.site = site, .session = SessionOf(site), .held = {3}}, 0).forgotten);
    table_->Ready(site, SessionOf(site));
  }
  Round({"eu", "us"}, 1.0);
}

}  // namespace
}  // namespace causeway::server
