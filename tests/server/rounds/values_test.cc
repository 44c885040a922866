// Which contributions the rules take, by their length and by what they count, and what each weighs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/rounds/value_rules.h"
#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;
using testing::Pointwise;
using testing::SizeIs;

constexpr int64_t kParameters = 100;
constexpr int64_t kStepsOfARound = 8;

RoundSettings GatedRules(int sites) {
  RoundSettings rules = Rules(kStepsOfARound, /*num_fragments=*/1, /*delay=*/0, /*min_sites=*/sites);
  rules.values = {.gate = 8, .clip = true};
  return rules;
}

// Long ones are refused.
RoundSettings RefusingRules(int sites) {
  RoundSettings rules = GatedRules(sites);
  rules.values.clip = false;
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
    Round(sites, std::vector<double>(sites.size(), norm));
  }
  // Their norms; returns the factors.
  std::vector<float> Round(const std::vector<core::SiteId>& sites, const std::vector<double>& norms) {
    const core::Version base = version();
    for (size_t i = 0; i < sites.size(); ++i) EXPECT_EQ(Send(sites[i], Sent(base, norms[i])), std::nullopt);
    EXPECT_EQ(version(), base + 1);
    std::vector<float> factors;
    const auto closed = ActionsOf<CloseRound>(last_);
    if (closed.size() != 1) return factors;
    for (const auto& contributor : closed[0].contributors) factors.push_back(contributor.factor);
    return factors;
  }

  core::Version version() const { return table_->state().versions[0]; }
  const core::SiteRecord& Record(const core::SiteId& site) const { return table_->state().sites.at(site); }

  std::optional<RulesForTest> table_;
  Actions last_;
};

// ---- Scaled, as by default ----

TEST_F(Values, OneThatIsLongerThanTheGateIsScaledDownToItAndMakesRoomByWhatWasLetIn) {
  Start(GatedRules(2), {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  EXPECT_THAT(Round({"eu", "us"}, {32.0, 1.0}), ElementsAre(0.25F, 1.0F));
  EXPECT_THAT(ActionsOf<CloseRound>(last_)[0].reason, HasSubstr("eu scaled by 0.25"));
  EXPECT_EQ(Record("eu").merged.at(0).back(), (core::Merged{2, Sent(1, 32.0), 0.25F}));
  EXPECT_THAT(Round({"eu", "us"}, {32.0, 1.0}), ElementsAre(1.0F, 1.0F)) << "of two the longer one's is the usual: 8";
}

TEST_F(Values, ARiseAtAllSitesIsScaledForSomeRoundsAndStopsNone) {
  for (const auto& [rise, factor] : {std::pair(9.5, 8 / 9.5), std::pair(30.0, 8 / 30.0)}) {
    Start(GatedRules(2), {"eu", "us"});
    for (int i = 0; i < 16; ++i) Round({"eu", "us"}, 1.0);
    for (int i = 0; i < 9; ++i) {
      EXPECT_THAT(Round({"eu", "us"}, {rise, rise}), Each(FloatEq(static_cast<float>(factor)))) << i;
    }
    EXPECT_THAT(Round({"eu", "us"}, {rise, rise}), ElementsAre(1.0F, 1.0F));
  }
}

TEST_F(Values, FirstRoundsOfOneOrTwoSitesHaveNoOutlierWhateverTheirScale) {
  Start(GatedRules(1), {"eu"});
  for (const double norm : {1e5, 1e5, 7e5}) Round({"eu"}, norm);
  Start(GatedRules(2), {"eu", "us"});
  EXPECT_THAT(Round({"eu", "us"}, {1.0, 1e5}), ElementsAre(1.0F, 1.0F));
  EXPECT_THAT(Round({"eu", "us"}, {1.0, 1e5}), ElementsAre(1.0F, 1.0F)) << "of two the longer is the usual";
  EXPECT_THAT(table_->Outliers(), SizeIs(0)) << "too early to say";
  for (int i = 0; i < 2; ++i) Round({"eu", "us"}, {1.0, 1e5});
  ASSERT_THAT(table_->Outliers(), SizeIs(1));
  EXPECT_EQ(table_->Outliers()[0].kind, core::Outlier::Kind::kApart);
  EXPECT_EQ(table_->Outliers()[0].text, "contributions of us have the usual length 1e+05, those of eu 1");
}

TEST_F(Values, InTheFirstRoundOfThreeTheUpperMedianOfTheRoundIsTheUsual) {
  Start(GatedRules(3), {"asia", "eu", "us"});
  EXPECT_THAT(Round({"asia", "eu", "us"}, {1.0, 2.0, 1e6}), ElementsAre(1.0F, 1.0F, 16e-6F));
}

TEST_F(Values, OfFourSitesOfWhichTwoSendNextToNothingTheUsualIsThatOfTheOthers) {
  Start(GatedRules(4), {"asia", "eu", "mars", "us"});
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Round({"asia", "eu", "mars", "us"}, {1e-9, 1.0, 1.0, 1e-9}), Each(1.0F));
  }
}

TEST_F(Values, OneBesideTwoIsNamedAndMergedAtTheUsualLengthAfterThreeScaledRounds) {
  Start(GatedRules(3), {"asia", "eu", "us"});
  Round({"asia", "eu", "us"}, 1.0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Round({"asia", "eu", "us"}, {1.0, 1e6, 1.0}), ElementsAre(1.0F, 8e-6F, 1.0F)) << i;
    ASSERT_THAT(table_->Outliers(), SizeIs(1));
    EXPECT_EQ(table_->Outliers()[0].site, "eu");
    const auto kind = i < 2 ? core::Outlier::Kind::kScaled : core::Outlier::Kind::kBroken;
    EXPECT_EQ(table_->Outliers()[0].kind, kind) << i;
  }
  EXPECT_EQ(table_->Outliers()[0].text, "norm 1e+06 was scaled by 8e-06, number 3 in a row");
  for (int i = 0; i < 40; ++i) {
    EXPECT_THAT(Round({"asia", "eu", "us"}, {1.0, 1e6, 1.0}), ElementsAre(1.0F, 1e-6F, 1.0F)) << i;
  }
  EXPECT_THAT(ActionsOf<CloseRound>(last_)[0].reason, HasSubstr("eu scaled by 1e-06, to the usual length"));
  EXPECT_THAT(Round({"asia", "eu", "us"}, {7.0, 7.0, 7.0}), Each(1.0F)) << "it is not long any more";
  EXPECT_THAT(Round({"asia", "eu", "us"}, {1.0, 1e6, 1.0})[1], FloatEq(8e-6F)) << "and has the gate's room again";
}

TEST_F(Values, ThreeThatRiseTogetherAreNotBroken) {
  Start(GatedRules(3), {"asia", "eu", "us"});
  for (int i = 0; i < 16; ++i) Round({"asia", "eu", "us"}, 1.0);
  for (int i = 0; i < 6; ++i) EXPECT_THAT(Round({"asia", "eu", "us"}, {80.0, 80.0, 80.0}), Each(0.1F)) << i;
}

TEST_F(Values, ANewcomerBesideOneThatHasConvergedAloneCountsFullyAfterSomeRounds) {
  Start(GatedRules(1), {"eu"});
  for (int i = 0; i < 20; ++i) Round({"eu"}, 1e-6);
  Arrive(*table_, "us");
  int rounds = 0;
  while (Round({"eu", "us"}, {1e-6, 1.0})[1] < 1) ASSERT_LT(++rounds, 100);
  EXPECT_EQ(rounds, 27);
}

TEST_F(Values, WhatIsAbsurdIsRefusedEvenSoAndTheRoundDoesNotWait) {
  Start(GatedRules(2), {"eu", "us"});
  EXPECT_EQ(Send("eu", Sent(0, 1e10)), std::nullopt) << "1e9 in each of 100 values";
  ASSERT_EQ(Send("us", Sent(0, 1.0)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(1, 1.0)), std::nullopt);
  const auto why = Send("eu", Sent(1, 6e29));
  EXPECT_EQ(why.value_or(""), "norm 6e+29 is absurd: the usual is 1e+10, and 10 moves each value by 1 (values.gate)");
  EXPECT_EQ(version(), 2);
  EXPECT_EQ(Record("eu").refusals, 1);
  EXPECT_TRUE(Send("eu", Sent(2, std::nan(""))).has_value());
}

TEST_F(Values, AContributionWithoutALengthIsNoHistory) {
  Start(GatedRules(1), {"eu"});
  Round({"eu"}, 0.0);
  EXPECT_THAT(Record("eu").merged, SizeIs(0));
  EXPECT_THAT(Round({"eu"}, std::vector{5.0}), ElementsAre(1.0F));
}

TEST_F(Values, WithoutAGateToScaleToNothingIsScaled) {
  RoundSettings rules = GatedRules(2);
  rules.values.gate = 0;
  Start(rules, {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  EXPECT_THAT(Round({"eu", "us"}, {1e30, 1.0}), Each(1.0F));
}

TEST_F(Values, AChangeOfValuesHoldsForTheOpenRound) {
  Start(GatedRules(2), {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("eu", Sent(1, 4.0)), std::nullopt);
  table_->Handle(SettingsChanged{.versions = {1000000}, .values = {.gate = 2, .clip = true}}, 0);
  ASSERT_EQ(Send("us", Sent(1, 1.0)), std::nullopt);
  EXPECT_EQ(ActionsOf<CloseRound>(last_)[0].contributors[0].factor, 0.5F);
}

// ---- Refused, where an operator wants that ----

TEST_F(Values, WithoutClipOneThatIsLongerThanTheGateIsRefusedAndTheRoundDoesNotExpectIt) {
  Start(RefusingRules(2), {"eu", "us"});
  for (int i = 0; i < 3; ++i) Round({"eu", "us"}, 1.0);
  ASSERT_EQ(Send("us", Sent(3, 1.0)), std::nullopt);
  const auto why = Send("eu", Sent(3, 8.5));
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(*why, "norm 8.5 is 8.5 times the usual 1; at most 8 are taken (values.gate)");
  const auto closed = ActionsOf<CloseRound>(last_);
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(closed[0].contributors, SizeIs(1));
  EXPECT_EQ(Record("eu").refusals, 1);
  EXPECT_EQ(Send("eu", Sent(4, 8.0)), std::nullopt);
  EXPECT_EQ(Record("eu").refusals, 0);
}

TEST_F(Values, ARefusedOneIsRefusedAgainAndCountsOnce) {
  Start(RefusingRules(2), {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  ASSERT_TRUE(Send("eu", Sent(1, 100.0)).has_value());
  EXPECT_THAT(Send("eu", Sent(1, 1.0)).value_or(""), HasSubstr("norm 1e+02 is 1e+02 times the usual 1"));
  EXPECT_EQ(Record("eu").refusals, 1);
}

TEST_F(Values, ThreeRefusalsInARowAreAQuarantineThatEndsWithALengthAsUsual) {
  Start(RefusingRules(3), {"asia", "eu", "us"});
  Round({"asia", "eu", "us"}, 1.0);
  for (int i = 0; i < 4; ++i) {
    const core::Version base = version();
    ASSERT_TRUE(Send("eu", Sent(base, 1e8)).has_value());
    for (const char* site : {"asia", "us"}) ASSERT_EQ(Send(site, Sent(base, 1.0)), std::nullopt);
  }
  EXPECT_TRUE(Record("eu").quarantined);
  EXPECT_THAT(Record("eu").reason, HasSubstr("3 contributions in a row were refused"));
  Round({"asia", "us"}, 1.0);  // which does not wait for it
  const core::Version base = version();
  ASSERT_EQ(Send("eu", Sent(base, 8.0)), std::nullopt);
  EXPECT_FALSE(Record("eu").quarantined);
  EXPECT_EQ(Record("eu").reason, "");
  for (const char* site : {"asia", "us"}) ASSERT_EQ(Send(site, Sent(base, 1.0)), std::nullopt);
  EXPECT_THAT(ActionsOf<CloseRound>(last_)[0].contributors, SizeIs(3));
}

TEST_F(Values, AReleaseEmptiesTheHistoryAndLetsASiteBeginAnew) {
  Start(RefusingRules(3), {"asia", "eu", "us"});
  Round({"asia", "eu", "us"}, 1.0);
  while (!Record("eu").quarantined) {
    const core::Version base = version();
    ASSERT_TRUE(Send("eu", Sent(base, 1e8)).has_value());
    for (const char* site : {"asia", "us"}) ASSERT_EQ(Send(site, Sent(base, 1.0)), std::nullopt);
  }
  Actions actions;
  EXPECT_EQ(table_->Release("us", actions, 0).message(), "site us is not in quarantine");
  EXPECT_EQ(table_->Release("mars", actions, 0).message(), "the run has no site mars");
  ASSERT_TRUE(table_->Release("eu", actions, 0).ok());
  EXPECT_THAT(ActionsOf<Dropped>(actions), SizeIs(1));
  EXPECT_THAT(Record("eu").merged, SizeIs(0));
  EXPECT_EQ(table_->Release("", actions, 0).message(), "no site is in quarantine");
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

TEST_F(Values, ARunOfWhichAllSitesAreInQuarantineIsPausedAndOneReleaseOfAllFreesIt) {
  Start(RefusingRules(2), {"eu", "us"});
  for (int i = 0; i < 16; ++i) Round({"eu", "us"}, 1.0);
  for (int i = 0; i < 100 && !(Record("eu").quarantined && Record("us").quarantined); ++i) {
    for (const char* site : {"eu", "us"}) {
      if (Record(site).state == core::SiteState::kGone) Arrive(*table_, site);  // it was all that the round had
      Send(site, Sent(version(), 9.0));
    }
  }
  EXPECT_EQ(table_->run_state(), RunState::kPaused);
  EXPECT_EQ(table_->Reason(), "all active sites are in quarantine (causewayctl release --all)");
  Actions actions;
  ASSERT_TRUE(table_->Release("", actions, 0).ok());
  EXPECT_THAT(ActionsOf<Dropped>(actions), SizeIs(2));
  for (const char* site : {"eu", "us"}) {
    table_->Join({.site = site, .session = SessionOf(site), .held = {3}}, 0);
    table_->Ready(site, SessionOf(site));
  }
  for (int i = 0; i < 4; ++i) Round({"eu", "us"}, 9.0);
}

TEST_F(Values, WhatASiteCountsWrongIsRefusedAndNeverAQuarantine) {
  RoundSettings rules = GatedRules(2);
  rules.membership.weights = core::WeightRule::kTokens;
  Start(rules, {"eu", "us"});
  for (int i = 0; i < 5; ++i) {
    const core::Version base = version();
    const core::Admitted sent = Sent(base, 1.0, kStepsOfARound, 0);
    const std::string why = Send("eu", sent).value_or("");
    EXPECT_THAT(why, HasSubstr("(membership.weights)"));
    table_->Handle(ContributionRefused{"eu", 0, sent, why, /*too_long=*/false}, 0);
    ASSERT_EQ(Send("us", Sent(base, 1.0)), std::nullopt);
    ASSERT_EQ(version(), base + 1);
  }
  EXPECT_FALSE(Record("eu").quarantined);
}

TEST_F(Values, AChangeThatTheLastContributionsBreakIsRefusedByName) {
  Start(GatedRules(2), {"eu", "us"});
  const core::Version base = version();
  ASSERT_EQ(Send("eu", Sent(base, 1.0, kStepsOfARound, 0)), std::nullopt);
  ASSERT_EQ(Send("us", Sent(base, 1.0)), std::nullopt);
  core::MembershipConfig tokens;
  EXPECT_TRUE(table_->CheckChange(tokens, nullptr).ok());
  tokens.weights = core::WeightRule::kTokens;
  EXPECT_EQ(table_->CheckChange(tokens, nullptr).message(),
            "site eu's last contribution would be refused: contributions are weighted by tokens (membership.weights): "
            "expected at least one token and one step, got 0 tokens and 8 steps");
  EXPECT_THAT(std::string(table_->CheckChange({}, [](const core::SiteId&) { return 9; }).message()),
              HasSubstr("membership.max_tokens_per_step"));
}

TEST(StepsFactor, MoreStepsMayMoveFurtherButNotMoreThanTheRoundsSinceAllowNorThanFour) {
  const int64_t many = int64_t{1} << 60;
  EXPECT_DOUBLE_EQ(StepsFactor(8, 1, kStepsOfARound), 1);
  EXPECT_DOUBLE_EQ(StepsFactor(4, 1, kStepsOfARound), 1);  // a short one is not lengthened
  EXPECT_DOUBLE_EQ(StepsFactor(16, 1, kStepsOfARound), 2);
  EXPECT_DOUBLE_EQ(StepsFactor(many, 1, kStepsOfARound), 2);
  EXPECT_DOUBLE_EQ(StepsFactor(many, 60, kStepsOfARound), 4);
}

TEST(OwnLength, IsTheLowerMedianAndTheLongestOfFewerThanFour) {
  const auto own = [](const std::vector<double>& norms) {
    MergedOfSite merged;
    for (const double norm : norms) merged.push_back({.admitted = {.norm = norm}});
    return OwnLength(merged);
  };
  EXPECT_EQ(own({}), std::nullopt);
  EXPECT_EQ(own({1, 9, 2}), 9);
  EXPECT_EQ(own({1, 9, 2, 8}), 2);
  EXPECT_EQ(own({1, 9, 2, 8, 7}), 7);
}

TEST_F(Values, HistoryIsOfSixteenContributionsAndComesBackWithTheState) {
  Start(RefusingRules(1), {"eu"});
  for (int i = 0; i < 20; ++i) Round({"eu"}, 1.0 + 0.125 * i);
  const MergedOfSite& history = Record("eu").merged.at(0);
  ASSERT_THAT(history, SizeIs(16));
  EXPECT_EQ(history.front(), (core::Merged{5, Sent(4, 1.5), 1}));
  EXPECT_EQ(history.back(), (core::Merged{20, Sent(19, 3.375), 1}));
  RulesForTest again(RefusingRules(1), table_->state(), 0);
  EXPECT_EQ(again.WhyTooLong("eu", 0, Sent(20, 100.0), kParameters),
            table_->WhyTooLong("eu", 0, Sent(20, 100.0), kParameters));
}

TEST_F(Values, WithoutAGateOneThatIsFarTooLongIsMergedAndShown) {
  RoundSettings rules = GatedRules(2);
  rules.values.gate = 0;
  Start(rules, {"eu", "us"});
  Round({"eu", "us"}, 1.0);
  Round({"eu", "us"}, {1e30, 1.0});
  ASSERT_THAT(table_->Outliers(), SizeIs(1));
  EXPECT_EQ(table_->Outliers()[0].site, "eu");
  EXPECT_EQ(table_->Outliers()[0].text, "norm 1e+30 is 1e+30 times the usual 1");
  for (int i = 0; i < 100; ++i) Round({"eu", "us"}, 1.0);
  EXPECT_THAT(table_->Outliers(), SizeIs(1)) << "others of that length do not undo it";
}

TEST_F(Values, AnOutlierIsShownForAsManyRoundsAsTheOthersNeedToUndoIt) {
  RoundSettings rules = GatedRules(2);
  rules.values.gate = 0;
  for (const auto& [norm, rounds] : {std::pair(9.0, 16), std::pair(40.0, 40)}) {
    Start(rules, {"eu", "us"});
    Round({"eu", "us"}, 1.0);
    Round({"eu", "us"}, {norm, 1.0});
    for (int i = 1; i < rounds; ++i) Round({"eu", "us"}, 1.0);
    EXPECT_THAT(table_->Outliers(), SizeIs(1)) << norm;
    Round({"eu", "us"}, 1.0);
    EXPECT_THAT(table_->Outliers(), SizeIs(0)) << norm;
  }
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
  EXPECT_THAT(Record("eu").merged.at(0), SizeIs(2));
  EXPECT_THAT(table_->Outliers(), SizeIs(0));
  EXPECT_THAT(ActionsOf<Dropped>(actions), SizeIs(2));
  for (const char* site : {"eu", "us"}) {
    EXPECT_TRUE(table_->Join({.site = site, .session = SessionOf(site), .held = {3}}, 0).forgotten);
    table_->Ready(site, SessionOf(site));
  }
  Round({"eu", "us"}, 1.0);
}

}  // namespace
}  // namespace causeway::server
