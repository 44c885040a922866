#include "server/rebuild/rebuild_rules.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

namespace causeway::server {
namespace {

using core::HeldVersion;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr core::Shard kAlone{0, 1};
constexpr int64_t kLateMs = RebuildRules::kSettleMs;

// Two fragments, with digests that follow from the versions.
Holdings HoldingsOf(core::Version first, core::Version second, const std::string& lineage = "l") {
  const auto of = [](core::Version version) {
    return HeldVersion{version, static_cast<uint64_t>(10 * version), static_cast<uint64_t>(10 * version + 1)};
  };
  return {.lineage = lineage, .model = "m", .fragments = {{0, of(first)}, {1, of(second)}}};
}

std::string WhyNot(const RebuildRules& rules, int64_t now_ms = kLateMs) {
  return std::string(rules.Choose(now_ms).status().message());
}

TEST(RebuildRules, TakeTheNewestVersionThatTwoSitesHold) {
  RebuildRules rules(2, kAlone, "");
  rules.Show("eu", HoldingsOf(5, 5), 0);
  rules.Show("us", HoldingsOf(5, 4), 0);
  rules.Show("asia", HoldingsOf(4, 4), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->fragments.at(0).held.version, 5);
  EXPECT_THAT(choice->fragments.at(0).witnesses, ElementsAre("eu", "us"));
  EXPECT_EQ(choice->fragments.at(1).held.version, 4);
  EXPECT_THAT(choice->fragments.at(1).witnesses, ElementsAre("asia", "us"));
  EXPECT_THAT(choice->dissent, ElementsAre(HasSubstr("site eu holds version 5")));
}

// The first `count` revisions of a run.
core::SettingsChain SettingsOf(int64_t count, uint64_t nonce = 1) {
  core::SettingsChain chain;
  for (int64_t number = 1; number <= count; ++number) {
    core::SettingsRevision one{.number = number, .step = number, .versions = {1, 1}, .nonce = nonce};
    one.digest = core::DigestOf(number == 1 ? 0 : chain.revisions.back().digest, one);
    chain.revisions.push_back(one);
  }
  return chain;
}

TEST(RebuildRules, TakeTheLongestSettingsOfWhichTwoHoldTheNewest) {
  RebuildRules rules(2, kAlone, "");
  const auto show = [&](const char* site, const core::SettingsChain& settings) {
    Holdings holdings = HoldingsOf(5, 5);
    holdings.settings = settings;
    rules.Show(site, holdings, 0);
  };
  const auto chosen = [&] { return static_cast<int>(rules.Choose(kLateMs)->settings.revisions.size()); };
  show("eu", SettingsOf(4));
  show("us", SettingsOf(2));
  EXPECT_EQ(chosen(), 2);
  show("asia", SettingsOf(3));
  EXPECT_EQ(chosen(), 3) << "eu holds the third, too";
  show("asia", SettingsOf(9, /*nonce=*/2));
  EXPECT_EQ(chosen(), 2) << "of another history there is one";
  show("us", {});
  EXPECT_EQ(chosen(), 0) << "it does not know";
}

TEST(RebuildRules, TakeTheSettingsOfTheOneSiteThatIsTrustedAndNeverFewerThanTheirOwn) {
  RebuildRules trusting(2, kAlone, "eu");
  Holdings holdings = HoldingsOf(5, 5);
  holdings.settings = SettingsOf(4);
  trusting.Show("eu", holdings, 0);
  EXPECT_THAT(trusting.Choose(kLateMs)->settings.revisions, SizeIs(4));

  Holdings own = HoldingsOf(5, 5);
  own.settings = SettingsOf(3);
  RebuildRules rules(2, kAlone, "", OwnHoldings{.held = own, .sites = {"eu"}});
  rules.Show("eu", holdings, 0);
  EXPECT_THAT(rules.Choose(kLateMs)->settings.revisions, SizeIs(3)) << "one holds the fourth";
  rules.Show("us", holdings, 0);
  EXPECT_THAT(rules.Choose(kLateMs)->settings.revisions, SizeIs(4));
}

TEST(RebuildRules, WaitUntilNoFurtherSiteComes) {
  RebuildRules rules(2, kAlone, "");
  EXPECT_THAT(WhyNot(rules), HasSubstr("0 of at least 2 sites"));
  rules.Show("eu", HoldingsOf(5, 5), 0);
  EXPECT_THAT(WhyNot(rules), HasSubstr("1 of at least 2 sites"));
  rules.Show("us", HoldingsOf(5, 5), 1'000);
  rules.Show("us", HoldingsOf(5, 5), 6'000);
  EXPECT_THAT(WhyNot(rules, 1'000 + kLateMs - 1), HasSubstr("2 sites have shown what they hold; waits for others"));
  EXPECT_TRUE(rules.Choose(1'000 + kLateMs).ok());
}

TEST(RebuildRules, SiteThatComesAndGoesAndNamesThatNeverEndHoldNothingUp) {
  RebuildRules rules(2, kAlone, "");
  rules.Show("eu", HoldingsOf(5, 5), 0);
  rules.Show("us", HoldingsOf(5, 5), 0);
  for (int64_t ms = 0; ms < kLateMs; ms += 1'000) {
    rules.Show("mallory", HoldingsOf(900, 900), ms);
    rules.Leave("mallory");
  }
  EXPECT_TRUE(rules.Choose(kLateMs).ok());
  for (int64_t ms = kLateMs; ms < RebuildRules::kMostSettleMs; ms += 1'000) {
    rules.Show("mallory-" + std::to_string(ms), HoldingsOf(900 + ms, 900), ms);
    EXPECT_FALSE(rules.Choose(ms).ok());
  }
  EXPECT_TRUE(rules.Choose(RebuildRules::kMostSettleMs).ok());
}

TEST(RebuildRules, SiteThatShowsOtherValuesThanTwoOthersIsNamed) {
  RebuildRules rules(2, kAlone, "");
  Holdings other = HoldingsOf(5, 5);
  other.fragments[1].momentum_digest = 7;
  rules.Show("us", other, 0);
  rules.Show("eu", HoldingsOf(5, 5), 0);
  EXPECT_THAT(WhyNot(rules), HasSubstr("fragment 1: no two sites hold the same version with equal digests"));
  EXPECT_THAT(WhyNot(rules), HasSubstr("--accept=SITE"));
  rules.Show("asia", HoldingsOf(5, 5), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->fragments.at(1).witnesses, ElementsAre("asia", "eu"));
  EXPECT_THAT(choice->dissent, ElementsAre(HasSubstr("site us holds version 5 (digests 0000000000000032 and "
                                                     "0000000000000007) of fragment 1, not taken: asia and eu hold")));
}

TEST(RebuildRules, NewestVersionOfASiteAloneIsNotTaken) {
  RebuildRules rules(2, kAlone, "");
  rules.Show("liar", HoldingsOf(900, 900), 0);
  rules.Show("eu", HoldingsOf(5, 5), 0);
  rules.Show("us", HoldingsOf(5, 5), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->fragments.at(0).held.version, 5);
  EXPECT_THAT(choice->dissent, SizeIs(2)) << "one for each fragment";
}

TEST(RebuildRules, SeveralThatAgreeOnAnotherHistoryThanSeveralOthersAreLeftToAnOperator) {
  Holdings falsified = HoldingsOf(5, 5);
  falsified.fragments[0].anchor_digest = 666;
  for (const Holdings& shown : {falsified, HoldingsOf(1'000'000, 1'000'000), HoldingsOf(5, 5, "foreign")}) {
    for (const core::SiteId accepted : {"", "eu"}) {
      RebuildRules rules(2, kAlone, accepted);
      for (const char* liar : {"x", "y", "z"}) rules.Show(liar, shown, 0);
      for (const char* honest : {"asia", "eu", "us"}) rules.Show(honest, HoldingsOf(5, 5), 0);
      if (accepted.empty()) {
        EXPECT_THAT(WhyNot(rules), HasSubstr("--accept=SITE takes a site's"));
        continue;
      }
      const auto choice = rules.Choose(kLateMs);
      ASSERT_TRUE(choice.ok()) << choice.status();
      EXPECT_THAT(choice->fragments.at(0).witnesses, ElementsAre("asia", "eu", "us"));
    }
  }
}

TEST(RebuildRules, TakeWhatMoreSitesHoldWhateverTheOthersSayThatTheyHeldBefore) {
  for (const core::Version ahead : {6, 1'000'000}) {
    RebuildRules rules(2, kAlone, "");
    Holdings lie = HoldingsOf(ahead, 5);
    lie.fragments[0].anchor_digest = 666;
    lie.before[0] = HoldingsOf(5, 5).fragments[0];
    for (const char* liar : {"x", "y"}) rules.Show(liar, lie, 0);
    for (const char* honest : {"eu", "us"}) rules.Show(honest, HoldingsOf(5, 5), 0);
    if (ahead == 6) {
      EXPECT_EQ(rules.Choose(kLateMs)->fragments.at(0).held.version, 6) << "two of four: the later";
    }
    rules.Show("asia", HoldingsOf(5, 5), 0);
    const auto choice = rules.Choose(kLateMs);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->fragments.at(0).held.version, 5);
    EXPECT_THAT(choice->fragments.at(0).witnesses, ElementsAre("asia", "eu", "us"));
    EXPECT_THAT(choice->dissent, SizeIs(2)) << "one of each liar";
  }
}

TEST(RebuildRules, FewerThatAreFarBehindDoNotContradict) {
  RebuildRules rules(2, kAlone, "");
  for (const char* behind : {"x", "y"}) rules.Show(behind, HoldingsOf(2, 2), 0);
  for (const char* newest : {"asia", "eu", "us"}) rules.Show(newest, HoldingsOf(5, 5), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->fragments.at(0).held.version, 5);
}

TEST(RebuildRules, SitesOfAnotherRunOrModelDoNotCount) {
  RebuildRules rules(2, kAlone, "");
  rules.Show("eu", HoldingsOf(5, 5), 0);
  rules.Show("us", HoldingsOf(5, 5), 0);
  rules.Show("other", HoldingsOf(9, 9, "elsewhere"), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->lineage, "l");
  EXPECT_THAT(choice->dissent, ElementsAre(HasSubstr("site other is of another lineage")));
}

TEST(RebuildRules, SiteThatSentOtherThanItShowedCountsNoMore) {
  RebuildRules rules(2, kAlone, "");
  for (const char* site : {"asia", "eu", "us"}) rules.Show(site, HoldingsOf(5, 5), 0);
  rules.Distrust("eu");
  EXPECT_TRUE(rules.Distrusts("eu"));
  EXPECT_THAT(rules.Choose(kLateMs)->fragments.at(0).witnesses, ElementsAre("asia", "us"));
  rules.Leave("us");
  EXPECT_THAT(WhyNot(rules), HasSubstr("1 of at least 2 sites"));
}

TEST(RebuildRules, AcceptedSiteIsBelievedAlone) {
  RebuildRules rules(2, kAlone, "us");
  rules.Show("eu", HoldingsOf(6, 6), 0);
  rules.Show("asia", HoldingsOf(6, 6), 0);
  EXPECT_THAT(WhyNot(rules), HasSubstr("site us (--accept) has not shown what it holds"));
  rules.Show("us", HoldingsOf(5, 5, "mine"), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->lineage, "mine");
  EXPECT_THAT(choice->fragments.at(1).witnesses, ElementsAre("us"));
}

TEST(RebuildRules, ShardAsksForItsOwnFragmentsAlone) {
  RebuildRules rules(2, {1, 2}, "");
  rules.Show("eu", HoldingsOf(5, 5), 0);
  rules.Show("us", HoldingsOf(4, 5), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->fragments, SizeIs(1));
  EXPECT_THAT(choice->dissent, IsEmpty());
}

// One has taken the last update, the other has not yet: it remembers what the other holds.
TEST(RebuildRules, SiteAgreesWithWhatItHeldBeforeItsLastUpdate) {
  RebuildRules rules(2, kAlone, "");
  Holdings ahead = HoldingsOf(6, 5);
  ahead.before[0] = HoldingsOf(5, 5).fragments[0];
  rules.Show("eu", ahead, 0);
  rules.Show("us", HoldingsOf(5, 5), 0);
  const auto choice = rules.Choose(kLateMs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->fragments.at(0).held.version, 5);
  EXPECT_THAT(choice->fragments.at(0).witnesses, ElementsAre("us"));
  ahead.before[0].momentum_digest = 7;
  rules.Show("eu", ahead, 0);
  EXPECT_THAT(WhyNot(rules), HasSubstr("fragment 0: no two sites hold the same version"));
}

TEST(RebuildRules, SiteDoesNotAgreeWithItself) {
  RebuildRules rules(2, kAlone, "");
  Holdings lie = HoldingsOf(900, 900);
  lie.before = lie.fragments;
  rules.Show("mallory", lie, 0);
  rules.Show("eu", HoldingsOf(5, 5), 0);
  EXPECT_THAT(WhyNot(rules), HasSubstr("fragment 0: no two sites hold the same version"));
}

RebuildRules RulesOf(const Holdings& own) { return {2, kAlone, "", OwnHoldings{own, {"eu", "us"}}}; }

TEST(OwnRebuildRules, TakeWhatTwoSitesHoldBeyondTheOwnStateAndKeepTheRest) {
  RebuildRules rules = RulesOf(HoldingsOf(5, 5));
  rules.Show("eu", HoldingsOf(8, 5), 0);
  EXPECT_FALSE(rules.IsSettled(kLateMs - 1));
  rules.Show("us", HoldingsOf(8, 4), 0);
  EXPECT_TRUE(rules.IsSettled(0)) << "all that were in the run have come";
  const auto choice = rules.Choose(0);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->fragments.at(0).held.version, 8);
  EXPECT_THAT(choice->fragments.at(0).witnesses, ElementsAre("eu", "us"));
  EXPECT_EQ(choice->fragments.at(1).held.version, 5);
  EXPECT_THAT(choice->fragments.at(1).witnesses, IsEmpty());
}

TEST(OwnRebuildRules, OwnStateIsOneOfTwoThatAgreeAndNoRivalOfANewerOne) {
  RebuildRules rules = RulesOf(HoldingsOf(5, 5));
  rules.Show("eu", HoldingsOf(6, 9), 0);
  rules.Show("us", HoldingsOf(5, 9), 0);
  rules.Show("asia", HoldingsOf(5, 5), 0);
  const auto choice = rules.Choose(0);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->fragments.at(0).held.version, 5);
  EXPECT_EQ(choice->fragments.at(1).held.version, 9);
  EXPECT_THAT(choice->dissent, ElementsAre(HasSubstr("not taken: the coordinator holds version 5")));
}

TEST(OwnRebuildRules, AreUndecidedWhereNoTwoAgreeOnWhatIsNewer) {
  RebuildRules rules = RulesOf(HoldingsOf(5, 5));
  EXPECT_FALSE(rules.IsSettled(10 * kLateMs)) << "no site has come";
  rules.Show("eu", HoldingsOf(9, 5), 0);
  rules.Show("us", HoldingsOf(8, 5), 0);
  EXPECT_TRUE(rules.IsSettled(0));
  EXPECT_THAT(WhyNot(rules, 0), HasSubstr("fragment 0: no two sites hold the same version with equal digests"));
}

}  // namespace
}  // namespace causeway::server
