// The fields of GET /status that users and scripts rely on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/status/status_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

StatusSnapshot Snapshot() {
  StatusSnapshot snapshot{.run_id = "demo",
                          .protocol = 1,
                          .epoch = 3,
                          .state = "waiting",
                          .reason = "1 of 2",
                          .uptime_s = 1.5,
                          .parameters = 1000,
                          .config_json = "{\"run_id\":\"demo\"}",
                          .eval_loss_start = 5.5,
                          .eval_loss_latest = 4.25,
                          .eval_loss_versions = {2, 1}};
  snapshot.codec = {core::CodecId::kInt4, core::CodecId::kInt8, 1.0f, 0.5f};
  snapshot.codec.allow_down = {core::CodecId::kInt8, core::CodecId::kInt4};
  snapshot.codec_reason_down = "int8: it fits";
  SiteStatus& site = snapshot.sites.emplace_back();
  site = {.name = "eu",
          .state = core::SiteState::kTraining,
          .reason = "why",
          .up_bytes = 10,
          .down_bytes = 20,
          .up_bytes_per_s = 1.25,
          .down_bytes_per_s = 2.5};
  site.progress = {.step = 7,
                   .tokens = 70,
                   .loss = 2.5,
                   .tokens_per_s = 100,
                   .compute_s = 3,
                   .stall_s = 1,
                   .wall_s = 4,
                   .slack_s = -0.25,
                   .contributions_sent = 5,
                   .contributions_merged = 4,
                   .residual_norm = 0.5};
  site.progress.digests[0] = {2, 0xab};
  site.progress.fragments[1] = {0.5, 3, "updates take 2 steps"};
  site.progress.link = {1e6, 0, 0.05, 2};
  snapshot.shard = {1, 2};  // its fragments are 1 and 3
  snapshot.fragments = {{1, 600, {2, 0xab}, "open", "waiting for us", {"asia", "eu"}},
                        {3, 400, {1, 0}, "idle", "", {}}};
  return snapshot;
}

TEST(StatusJson, HasTheFieldsThatScriptsRelyOn) {
  const json expected = json::parse(R"({
    "schema_version": 1, "run_id": "demo", "protocol": 1, "epoch": 3, "shard": 1, "num_shards": 2, "state": "waiting", "reason": "1 of 2",
    "uptime_s": 1.5, "parameters": 1000, "config": {"run_id": "demo"},
    "codec": {"up": "int4", "down": "int8", "auto_up": false, "auto_down": true, "reason_up": "",
              "reason_down": "int8: it fits", "feedback_up": 1.0, "feedback_down": 0.5},
    "eval_loss": {"start": 5.5, "latest": 4.25, "versions": [2, 1]},
    "fragments": [
      {"id": 1, "parameters": 600, "version": 2, "digest": "00000000000000ab", "state": "open",
       "reason": "waiting for us", "contributors": ["asia", "eu"]},
      {"id": 3, "parameters": 400, "version": 1, "digest": "0000000000000000", "state": "idle", "reason": "",
       "contributors": []}]})");
  const json site = json::parse(R"(
      {"name": "eu", "state": "training", "reason": "why", "step": 7, "tokens": 70, "loss": 2.5, "tokens_per_s": 100.0,
       "utilization": 0.75, "stall_s": 1.0, "slack_s": -0.25, "up_bytes": 10, "down_bytes": 20, "up_bytes_per_s": 1.25,
       "down_bytes_per_s": 2.5, "contributions_sent": 5, "contributions_merged": 4, "residual_norm": 0.5,
       "fragments": [{"id": 1, "slack_s": 0.5, "fragment_sync_delay": 3, "reason": "updates take 2 steps"}],
       "link": {"up_bytes_per_s": 1000000.0, "down_bytes_per_s": null, "round_trip_s": 0.05, "channels": 2},
       "digests": {"0": {"version": 2, "digest": "00000000000000ab"}}})");
  const json status = json::parse(StatusJson(Snapshot()));
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(status.at(key), value) << key;
  ASSERT_EQ(status.at("sites").size(), 1u);
  for (const auto& [key, value] : site.items()) EXPECT_EQ(status.at("sites")[0].at(key), value) << key;
}

TEST(StatusJson, NumbersThatAreNotFiniteAreNull) {
  StatusSnapshot snapshot = Snapshot();
  snapshot.eval_loss_start = std::nan("");
  snapshot.eval_loss_latest = std::nullopt;
  snapshot.sites[0].progress.loss = std::nan("");
  snapshot.sites[0].progress.slack_s = std::numeric_limits<double>::infinity();
  snapshot.sites[0].progress.residual_norm = -std::numeric_limits<double>::infinity();
  snapshot.sites[0].progress.wall_s = 0;
  const json status = json::parse(StatusJson(snapshot));
  EXPECT_TRUE(status["eval_loss"].at("start").is_null());
  EXPECT_TRUE(status["eval_loss"].at("latest").is_null());
  for (const char* key : {"loss", "slack_s", "residual_norm", "utilization"}) {
    EXPECT_TRUE(status["sites"][0].at(key).is_null()) << key;
  }
}

TEST(StatusJson, BytesThatAreNotUtf8AreShownAsReplacements) {
  StatusSnapshot snapshot = Snapshot();
  snapshot.sites[0].reason = "peer said \xff\xfe";
  const std::string text = StatusJson(snapshot);
  EXPECT_TRUE(json::accept(text));
  EXPECT_THAT(text, HasSubstr("peer said \xEF\xBF\xBD"));
}

TEST(StatusJson, RunWithoutSitesHasEmptyLists) {
  const json status = json::parse(StatusJson({.config_json = "{}"}));
  EXPECT_EQ(status.at("sites"), json::array());
  EXPECT_EQ(status.at("fragments"), json::array());
}

}  // namespace
}  // namespace causeway::server
