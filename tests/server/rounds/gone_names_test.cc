#include "server/rounds/gone_names.h"

#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

void ComeAndGo(RulesForTest& table, int names) {
  for (int i = 0; i < names; ++i) {
    const std::string name = absl::StrCat("x", i);
    ASSERT_TRUE(table.Join({.site = name, .session = "s", .held = {}}, i).accepted);
    table.Leave(name, "s", /*finished=*/false, "has had enough", i);
  }
}

TEST(GoneNames, NameThatIsGoneForLongestIsGivenUpForANewOneWhenThereAreAsManyAsMayBe) {
  RulesForTest table(Rules(), {}, 0);
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
  RulesForTest table(Rules(), {}, 0);
  Arrive(table, "missed");
  table.Tick(2'000);
  ComeAndGo(table, core::kMaxSites - 1);
  const auto fresh = table.Join({.site = "new", .session = "s", .held = {}}, 9'000);
  EXPECT_EQ(ActionsOf<Forgotten>(fresh.actions).at(0).site, "x0");
  EXPECT_TRUE(table.state().sites.contains("missed"));
}

TEST(GoneNames, SiteWhoseContributionWaitsKeepsItsName) {
  RulesForTest table(Rules(8, 1, 0, 2), {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 0, 0);
  table.Pause().IgnoreError();
  table.Leave("a", "a-1", /*finished=*/false, "goes", 0);
  for (int i = 0; i < 2; ++i) ComeAndGo(table, core::kMaxSites);
  EXPECT_TRUE(table.state().sites.contains("a")) << "its round would close with a site without a name";
}

TEST(GoneNames, RunWhoseSitesAreAllInTakesNoFurtherOne) {
  RulesForTest table(Rules(), {}, 0);
  for (int i = 0; i < core::kMaxSites; ++i) {
    ASSERT_TRUE(table.Join({.site = absl::StrCat("x", i), .session = "s", .held = {}}, 0).accepted);
  }
  EXPECT_THAT(table.Join({.site = "new", .session = "s", .held = {}}, 0).reason, HasSubstr("1024 sites"));
}

}  // namespace
}  // namespace causeway::server
