#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "server/rounds/heard.h"
#include "server/rounds/run_facts.h"
#include "tests/server/rounds/rules_for_test.h"
#include "tests/server/rounds/rules_script.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

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

// Each fragment counts the tokens of what was merged into it.
TEST(RunRules, TokensOfMergedContributionsAddUp) {
  RoundSettings rules = Rules(/*sync_every=*/8, /*num_fragments=*/2);
  rules.sync.mode = core::SyncMode::kQuorum;
  rules.membership.min_quorum = 1;
  RulesForTest table(rules);
  for (const char* site : {"a", "b"}) Arrive(table, site);
  EXPECT_THAT(table.state().tokens, testing::ElementsAre(0, 0));
  table.Admit("a", 0, {.base = 0, .tokens = 100, .steps = 4}, 1, 100);
  const auto closed = ActionsOf<CloseRound>(table.Admit("b", 0, {.base = 0, .tokens = 30, .steps = 2}, 1, 110));
  ASSERT_EQ(closed.size(), 1);
  EXPECT_EQ(closed.at(0).run_tokens, 130);
  EXPECT_THAT(table.state().tokens, testing::ElementsAre(130, 0));
}

// The scripts of testdata/ (rules_script.h). CAUSEWAY_RULES_SCRIPTS names another folder.
TEST(RulesScripts, HaveTheOutcomesThatTheirFilesExpect) {
  const char* other = std::getenv("CAUSEWAY_RULES_SCRIPTS");
  core::ExpectScripts(other != nullptr ? other : RULES_TESTDATA,
                      [](const std::string& script) { return RulesScript().Play(script); });
}

void ComeAndGo(RulesForTest& table, int names) {
  for (int i = 0; i < names; ++i) {
    const std::string name = absl::StrCat("x", i);
    ASSERT_TRUE(table.Join({.site = name, .session = "s", .held = {}}, i).accepted);
    table.Leave(name, "s", /*finished=*/false, "has had enough", i);
  }
}

TEST(GoneNames, NameThatIsGoneForLongestIsGivenUpForANewOneWhenThereAreAsManyAsMayBe) {
  RulesForTest table(Rules());
  ComeAndGo(table, core::kMaxSites);
  EXPECT_THAT(table.state().sites, SizeIs(core::kMaxSites));
  EXPECT_FALSE(table.MayHaveForgotten("x7"));
  EXPECT_TRUE(table.MayHaveForgotten("new"));
  const auto fresh = table.Join({.site = "new", .session = "s", .held = {}}, 5'000);
  EXPECT_TRUE(fresh.accepted);
  EXPECT_FALSE(fresh.forgotten);
  ASSERT_THAT(ActionsOf<Forgotten>(fresh.actions), SizeIs(1));
  EXPECT_EQ(ActionsOf<Forgotten>(fresh.actions)[0].site, "x0");
  EXPECT_THAT(table.state().sites, SizeIs(core::kMaxSites));
  const auto back = table.Join({.site = "x0", .session = "s", .held = {3, 3}}, 5'000);
  EXPECT_TRUE(back.accepted);
  EXPECT_FALSE(back.resumed);
  EXPECT_TRUE(back.forgotten) << "it has a part in what it does not know to be merged or not";
  EXPECT_EQ(table.state().sites.at("x0").stay, 3) << "above any of before";
}

TEST(GoneNames, SiteThatIsMissedKeepsItsNameLongerThanOneThatLeft) {
  RulesForTest table(Rules());
  Arrive(table, "missed");
  table.Handle(Tick{}, 2'000);
  ComeAndGo(table, core::kMaxSites - 1);
  const auto fresh = table.Join({.site = "new", .session = "s", .held = {}}, 9'000);
  EXPECT_EQ(ActionsOf<Forgotten>(fresh.actions).at(0).site, "x0");
  EXPECT_TRUE(table.state().sites.contains("missed"));
}

TEST(GoneNames, SiteWhoseContributionWaitsKeepsItsName) {
  RulesForTest table(Rules(8, 1, 0, 2));
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 0, 0);
  table.Handle(PauseRun{}, 0);
  table.Leave("a", "a-1", /*finished=*/false, "goes", 0);
  for (int i = 0; i < 2; ++i) ComeAndGo(table, core::kMaxSites);
  EXPECT_TRUE(table.state().sites.contains("a")) << "its round would close with a site without a name";
}

TEST(GoneNames, RunWhoseSitesAreAllInTakesNoFurtherOne) {
  RulesForTest table(Rules());
  for (int i = 0; i < core::kMaxSites; ++i) {
    ASSERT_TRUE(table.Join({.site = absl::StrCat("x", i), .session = "s", .held = {}}, 0).accepted);
  }
  EXPECT_THAT(table.Join({.site = "new", .session = "s", .held = {}}, 0).reason, HasSubstr("1024 sites"));
}

}  // namespace
}  // namespace causeway::server
