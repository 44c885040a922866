#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ctl/round_command.h"
#include "tests/plan/round_setting.h"

namespace causeway::ctl {
namespace {

using plan::FourSites;
using plan::RoundConfig;
using testing::HasSubstr;

TEST(RoundText, TextAndJsonSayTheSame) {
  const plan::RoundPlan plan = PlanOf(RoundConfig(), FourSites(200));
  const auto json = nlohmann::json::parse(RoundJson(plan));
  EXPECT_EQ(json["parameters"], 30'800'000);
  EXPECT_DOUBLE_EQ(json["utilization"], plan.round.utilization);
  EXPECT_DOUBLE_EQ(json["hub_mbit"], 200);
  EXPECT_DOUBLE_EQ(json["up"]["site_bytes_per_round"], plan.round.up_bytes);
  EXPECT_TRUE(json["site_needs_mbit"].is_null());  // with a delay of one step no link is fast enough
  const std::string text = RoundText(plan);
  EXPECT_THAT(text, HasSubstr("30.8 M parameters in 8 fragments, 4 sites"));
  EXPECT_THAT(text, HasSubstr(plan.bottleneck));
}

TEST(RoundText, ASweepHasALineForEachRow) {
  const auto rows = MakeSweep(RoundConfig(), FourSites(200));
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::string text = SweepText(*rows, FourSites(200));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3 + std::ssize(*rows));
}

}  // namespace
}  // namespace causeway::ctl
