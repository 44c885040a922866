#include "ctl/status_text.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace causeway::ctl {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json StatusOfAGoneSite() {
  return {{"run_id", "atlas"},
          {"state", "training"},
          {"reason", ""},
          {"parameters", 824448},
          {"codec", {{"up", "int4"}, {"down", "int4"}}},
          {"uptime_s", 12.5},
          {"eval_loss", {{"start", 5.3}, {"latest", nullptr}}},
          {"sites",
           {{{"name", "oslo"},
             {"state", "gone"},
             {"ranks", {{"ranks", 8}}},
             {"step", 1385},
             {"tokens_per_s", 4572},
             {"loss", 1.633},
             {"utilization", 0.917},
             {"up_bytes", 12.2e6},
             {"down_bytes", 13.3e6},
             {"up_bytes_per_s", 0},
             {"down_bytes_per_s", 0},
             {"reason", "drained"}}}},
          {"fragments", json::array()}};
}

TEST(StatusText, ParametersAreInMillionsAsThePlanHasThem) {
  const auto text = StatusText(StatusOfAGoneSite().dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("0.8244 M parameters"));
}

TEST(StatusText, LossesOfSitesStandWhereThereIsNoneOfTheRunWithTheReason) {
  json status = StatusOfAGoneSite();
  EXPECT_THAT(*StatusText(status.dump()), HasSubstr("eval loss 5.3 → -\n"));
  status["eval_loss"] = nullptr;
  status["eval_loss_reason"] = "each on its own";
  status["eval_loss_by_site"] = {{"eu", {{"loss", 1.5}}}, {"us", {{"loss", 2.25}}}};
  EXPECT_THAT(*StatusText(status.dump()),
              HasSubstr("eval loss - (each on its own)\neval loss of each site's own data: eu 1.5, us 2.25\n"));
}

TEST(StatusText, OtherJsonIsNoStatus) {
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, StatusText("{\"sites\": 3}").status().code());
}

}  // namespace
}  // namespace causeway::ctl
