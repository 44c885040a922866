// The fields of GET /status that users and scripts rely on.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/run_config.h"
#include "server/status/outer_gradients.h"
#include "server/status/status_snapshot.h"
#include "tests/server/status/large_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

StatusSnapshot RichSnapshot() {
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
  core::Progress progress{.step = 7,
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
  progress.digests[0] = {2, 0xab};
  progress.fragments[1] = {0.5, 3, "updates take 2 steps"};
  progress.link = {1e6, 0, 0.05, 2};
  progress.offload = {core::kAllOnCpu, 1000, "there is no device", 0, 0.25, 0.125};
  progress.ranks = {8, 2, "rank 3 of 8, x", 0.5, "", 3e6, core::OnebitProgress{208, 0.97, 31.8}, {{"node", 4e6, 5e6}}};
  site.progress = std::make_shared<core::Progress>(progress);
  site.contributing = true;
  site.contributing_reason = "open rounds expect it";
  site.cosine = SiteStatus::Cosine{1, 2, 0.75};
  site.last_merged = SiteStatus::Merged{1, 2, 900};
  site.missed = SiteStatus::Missed{3, 1, "it had not begun"};
  site.staleness = 1;
  site.lease_s_left = 2.5;
  site.up_rate = {10, 40};
  site.down_rate = {20, 80};
  site.loss_history = {{500, 3.25}, {1500, 2.5}};
  snapshot.version = "0.1.0";
  snapshot.unix_ms = 2000;
  snapshot.mode = core::SyncMode::kQuorum;
  snapshot.min_quorum = 2;
  snapshot.host = {1000, 400, 1234};
  snapshot.syncs.slowest_s = 0.25;
  snapshot.scrub = {.passes = 2, .bytes = 500, .ended_unix_ms = 1500, .damages = {"a is damaged"}};
  snapshot.eval_history = {{600, 1, 5.5}, {1600, 2, 4.25}};
  snapshot.alarms = {{"site_silent", Severity::kWarning, "eu", std::nullopt, "no word of eu", 1900}};
  snapshot.others.standbys = {{"b:1", true, true, "", 300, 4, 0.5}};
  snapshot.shard = {1, 2};  // its fragments are 1 and 3
  snapshot.fragments = {
      {1, 600, {2, 0xab}, "open", "waiting for us", {"asia", "eu"}, OuterGradientFigures{0.125, 0.3, 2.25, 2.5, 1.75}},
      {3, 400, {1, 0}, "idle", "", {}, std::nullopt}};
  return snapshot;
}

TEST(StatusJson, HasTheFieldsThatScriptsRelyOn) {
  const json expected = json::parse(R"({
    "schema_version": 1, "run_id": "demo", "protocol": 1, "epoch": 3, "shard": 1, "num_shards": 2, "state": "waiting", "reason": "1 of 2",
    "uptime_s": 1.5, "parameters": 1000, "config": {"run_id": "demo"},
    "version": "0.1.0", "unix_ms": 2000, "mode": "quorum", "min_quorum": 2, "contributing_sites": 1, "details": "full",
    "float32_every_step_bytes": 56000, "disk": {"free_bytes": 1000, "reserved_bytes": 400, "slowest_sync_s": 0.25,
    "scrub": {"passes": 2, "bytes": 500, "ended_unix_ms": 1500, "damages": ["a is damaged"]}},
    "certificate": {"expires_unix_s": 1234}, "role": "leader", "standby_of": "",
    "standbys": [{"address": "b:1", "connected": true, "whole": true, "unfit": "", "records_behind": 4, "bytes_behind": 300,
                  "seconds_behind": 0.5}],
    "alarms": [{"name": "site_silent", "severity": "warning", "site": "eu", "fragment": null, "text": "no word of eu",
                "since_unix_ms": 1900}],
    "codec": {"up": "int4", "down": "int8", "auto_up": false, "auto_down": true, "reason_up": "",
              "reason_down": "int8: it fits", "feedback_up": 1.0, "feedback_down": 0.5},
    "eval_loss": {"start": 5.5, "latest": 4.25, "versions": [2, 1],
                  "history": [{"unix_ms": 600, "version": 1, "loss": 5.5}, {"unix_ms": 1600, "version": 2, "loss": 4.25}]},
    "fragments": [
      {"id": 1, "parameters": 600, "version": 2, "digest": "00000000000000ab", "state": "open",
       "reason": "waiting for us", "contributors": ["asia", "eu"], "contributors_count": 2, "gradient_norm": 0.125,
       "outer_correlation": 0.3, "outer_amplification": 2.25, "outer_amplification_predicted": 2.5, "outer_lr_effective": 1.75},
      {"id": 3, "parameters": 400, "version": 1, "digest": "0000000000000000", "state": "idle", "reason": "",
       "contributors": [], "contributors_count": 0, "gradient_norm": null, "outer_correlation": null,
       "outer_amplification": null, "outer_amplification_predicted": null, "outer_lr_effective": null}]})");
  const json site = json::parse(R"(
      {"name": "eu", "state": "training", "reason": "why", "step": 7, "tokens": 70, "loss": 2.5, "tokens_per_s": 100.0,
       "utilization": 0.75, "stall_s": 1.0, "slack_s": -0.25, "up_bytes": 10, "down_bytes": 20, "up_bytes_per_s": 1.25,
       "down_bytes_per_s": 2.5, "contributions_sent": 5, "contributions_merged": 4, "residual_norm": 0.5,
       "fragments": [{"id": 1, "slack_s": 0.5, "fragment_sync_delay": 3, "reason": "updates take 2 steps"}],
       "link": {"up_bytes_per_s": 1000000.0, "down_bytes_per_s": null, "round_trip_s": 0.05, "channels": 2},
       "offload": {"k": "cpu", "subgroup": 1000, "reason": "there is no device", "predicted_update_s": null,
                   "update_s": 0.25, "waited_for_copies_s": 0.125},
       "ranks": {"ranks": 8, "hosts": 2, "slowest": "rank 3 of 8, x", "slowest_step_s": 0.5, "standing_still": "",
                 "step_bytes": 3e6,
                 "onebit_adam": {"phase": "frozen", "frozen_at": 208, "variance_ratio": 0.97, "compression": 31.8},
                 "levels": [{"name": "node", "predicted_bytes": 4e6, "measured_bytes": 5e6}]
}
, "digests" : {"0" : {"version" : 2, "digest" : "00000000000000ab"}},
              "digests_matching" : 1,
              "contributing" : true,
                               "contributing_reason" : "open rounds expect it",
                                                       "staleness" : 1,
                                                       "lease_s_left" : 2.5,
                                                       "last_merged" : {"fragment" : 1, "version" : 2, "unix_ms" : 900},
                                                                       "cosine"
    : {"fragment" : 1, "version" : 2, "value" : 0.75},
      "missed" : {"fragment" : 3, "version" : 1, "reason" : "it had not begun"},
                 "up_mean_bytes_per_s" : 10.0,
                 "up_peak_bytes_per_s" : 40.0,
                 "down_mean_bytes_per_s" : 20.0,
                 "down_peak_bytes_per_s" : 80.0,
                 "loss_history" : [ [ 500, 3.25 ], [ 1500, 2.5 ] ]
})");
  const json status = json::parse(StatusJson(RichSnapshot()));
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(status.at(key), value) << key;
  ASSERT_EQ(status.at("sites").size(), 1u);
  for (const auto& [key, value] : site.items()) EXPECT_EQ(status.at("sites")[0].at(key), value) << key;
}

TEST(StatusJson, LossesOfSitesStandApartAndWhereThereIsNoneOfTheRunItSaysWhy) {
  StatusSnapshot snapshot = RichSnapshot();
  json status = json::parse(StatusJson(snapshot));
  EXPECT_EQ(status["eval_loss_reason"], "");
  EXPECT_EQ(status["eval_loss_by_site"], json::object());
  EXPECT_TRUE(status["sites"][0]["data"].is_null());
  snapshot.eval_loss_reason = "each on its own";
  snapshot.sites[0].eval = EvalOfSite{1.5, {2, 1}};
  snapshot.sites[0].data.training = core::DataFingerprint{1000, 0xab};
  status = json::parse(StatusJson(snapshot));
  EXPECT_TRUE(status.at("eval_loss").is_null());
  EXPECT_EQ(status["eval_loss_reason"], "each on its own");
  EXPECT_EQ(status["eval_loss_by_site"], json::parse(R"({"eu": {"loss": 1.5, "versions": [2, 1]}})"));
  EXPECT_EQ(status["sites"][0]["data"], json::parse(R"({"tokens": 1000, "fingerprint": "00000000000000ab"})"));
  EXPECT_TRUE(status["sites"][0]["held_out"].is_null());
}

TEST(StatusJson, NumbersThatAreNotFiniteAreNull) {
  StatusSnapshot snapshot = RichSnapshot();
  snapshot.eval_loss_start = std::nan("");
  snapshot.eval_loss_latest = std::nullopt;
  core::Progress progress = *snapshot.sites[0].progress;
  progress.loss = std::nan("");
  progress.slack_s = std::numeric_limits<double>::infinity();
  progress.residual_norm = -std::numeric_limits<double>::infinity();
  progress.wall_s = 0;
  snapshot.sites[0].progress = std::make_shared<core::Progress>(progress);
  const json status = json::parse(StatusJson(snapshot));
  EXPECT_TRUE(status["eval_loss"].at("start").is_null());
  EXPECT_TRUE(status["eval_loss"].at("latest").is_null());
  for (const char* key : {"loss", "slack_s", "residual_norm", "utilization"}) {
    EXPECT_TRUE(status["sites"][0].at(key).is_null()) << key;
  }
}

TEST(StatusJson, BytesThatAreNotUtf8AreShownAsReplacements) {
  StatusSnapshot snapshot = RichSnapshot();
  snapshot.sites[0].reason = "peer said \xff\xfe";
  const std::string text = StatusJson(snapshot);
  EXPECT_TRUE(json::accept(text));
  EXPECT_THAT(text, HasSubstr("peer said \xEF\xBF\xBD"));
}

TEST(StatusJson, RunWithoutSitesHasEmptyLists) {
  const json status = json::parse(StatusJson({.config_json = "{}"}));
  EXPECT_EQ(status.at("sites"), json::array());
  EXPECT_EQ(status.at("fragments"), json::array());
  EXPECT_EQ(status.at("alarms"), json::array());
  EXPECT_TRUE(status.at("certificate").is_null());
  EXPECT_TRUE(status.at("disk").at("free_bytes").is_null());
}

TEST(StatusJson, SiteThatWasNeverMergedSaysSo) {
  StatusSnapshot snapshot;
  snapshot.sites.push_back({.name = "eu"});
  const json site = json::parse(StatusJson(snapshot)).at("sites")[0];
  for (const char* key : {"last_merged", "missed", "cosine", "lease_s_left", "loss"})
    EXPECT_TRUE(site.at(key).is_null()) << key;
}

TEST(StatusJson, ALargeRunFitsInto200KilobytesAndStillShowsWhatDiffers) {
  StatusSnapshot snapshot = LargeSnapshot(64, 64);
  snapshot.sites[5].mismatches = {7};
  const std::string text = StatusJson(snapshot);
  EXPECT_LT(text.size(), 200'000u);
  const json status = json::parse(text);
  EXPECT_EQ(status.at("details"), "reduced");
  ASSERT_EQ(status.at("sites").size(), 64u);
  ASSERT_EQ(status.at("fragments").size(), 64u);
  const json& site = status.at("sites")[5];
  EXPECT_EQ(site.at("digests").size(), 1u);
  EXPECT_TRUE(site.at("digests").contains("7"));
  EXPECT_EQ(site.at("digests_matching"), 63);
  ASSERT_EQ(site.at("fragments").size(), 1u);  // the one with the least slack
  EXPECT_EQ(site.at("fragments")[0].at("id"), 11);
  EXPECT_EQ(status.at("sites")[6].at("digests").size(), 0u);
  EXPECT_GE(site.at("loss_history").size(), 8u);
  EXPECT_EQ(status.at("fragments")[0].at("contributors_count"), 64);
}

TEST(StatusJson, WhoAsksForAllOfALargeRunGetsIt) {
  const json status = json::parse(StatusJson(LargeSnapshot(64, 64), Details::kFull));
  EXPECT_EQ(status.at("details"), "full");
  EXPECT_EQ(status.at("sites")[0].at("digests").size(), 64u);
  EXPECT_EQ(status.at("sites")[0].at("fragments").size(), 64u);
  EXPECT_EQ(status.at("fragments")[0].at("contributors").size(), 64u);
}

TEST(StatusJson, ARunOf1024PairsIsNotReducedYet) {
  const std::string text = StatusJson(LargeSnapshot(16, 64));
  EXPECT_EQ(json::parse(text).at("details"), "full");
  EXPECT_LT(text.size(), 250'000u);
}

// The JSON of GET /timeline.

TEST(TimelineJson, HasRoundsWithWhatHasComeSoFarAndNullForTheRest) {
  RoundLog log;
  log.Begun(0, 4, "asia", 100);
  log.Arrived(0, 4, "eu", 90, 120);
  log.Arrived(0, 4, "asia", 100, 130);
  log.Decided(0, 4, "all 2 \"active\" sites", 131);
  log.Merged(0, {4, 1}, 140);
  log.Taken(0, 4, "eu", 0, 1, 141, 150);
  log.Begun(0, 5, "eu", 200);
  StatusSnapshot snapshot;
  snapshot.unix_ms = 300;
  snapshot.sites = {{.name = "asia"}, {.name = "eu"}};
  snapshot.rounds = log.rounds();
  EXPECT_EQ(json::parse(TimelineJson(snapshot)), json::parse(R"({
    "unix_ms": 300, "sites": ["asia", "eu"], "rounds": [
      {"fragment": 0, "version": 4, "first_unix_ms": 90, "arrived": [[0, 100, 130], [1, 90, 120]],
       "decided_unix_ms": 131, "merged_unix_ms": 140, "taken": [[1, 150]], "reason": "all 2 \"active\" sites"},
      {"fragment": 0, "version": 5, "first_unix_ms": 200, "arrived": [[1, 200, null]], "decided_unix_ms": null,
       "merged_unix_ms": null, "taken": [], "reason": ""}]})"));
}

TEST(TimelineJson, KeepsTheNewestRoundsThatFit) {
  RoundLog log;
  for (core::Version version = 1; version <= 256; ++version) {
    for (int site = 0; site < 64; ++site) {
      log.Arrived(0, version, SiteNameForTest(site), 1'763'700'000'000, 1'763'700'000'900);
    }
    log.Decided(0, version, "all 64 active sites have contributed", 1'763'700'001'000);
    for (int site = 0; site < 64; ++site) {
      log.Taken(0, version, SiteNameForTest(site), 0, 1, 1'763'700'001'100, 1'763'700'002'000);
    }
  }
  StatusSnapshot snapshot = LargeSnapshot(64, 1);
  snapshot.rounds = log.rounds();
  const std::string text = TimelineJson(snapshot);
  EXPECT_LE(text.size(), kMaxTimelineBytes);
  EXPECT_GT(text.size(), kMaxTimelineBytes * 9 / 10);
  const json rounds = json::parse(text).at("rounds");
  EXPECT_EQ(rounds.back().at("version"), 256);
  EXPECT_EQ(rounds.front().at("version"), 257 - static_cast<int>(rounds.size()));
  EXPECT_EQ(rounds.back().at("taken").size(), 64u);
}

TEST(TimelineJson, ARunWithoutRoundsHasNone) {
  EXPECT_EQ(json::parse(TimelineJson({})), json::parse(R"({"unix_ms": 0, "sites": [], "rounds": []})"));
}

// The figures of a fragment's outer gradients, from sums whose answers are known.

constexpr core::OuterParameters kHalf = {2.0f, 0.5f};

TEST(OuterGradients, HaveNoCorrelationBeforeThereWasMomentum) {
  OuterGradients gradients;
  EXPECT_FALSE(gradients.Figures().norm.has_value());
  gradients.Add(1, kHalf, {.gg = 4, .gv = 0, .vv = 0});
  const OuterGradientFigures figures = gradients.Figures();
  EXPECT_DOUBLE_EQ(*figures.norm, 2);
  EXPECT_DOUBLE_EQ(*figures.amplification, 1.5);  // 1 + μ
  EXPECT_FALSE(figures.correlation || figures.predicted_amplification || figures.effective_lr);
}

TEST(OuterGradients, AreCorrelatedByTheRatioOfSums) {
  OuterGradients gradients;
  gradients.Add(2, kHalf, {.gg = 3, .gv = 1, .vv = 1});
  gradients.Add(3, kHalf, {.gg = 1, .gv = 1, .vv = 1});
  const OuterGradientFigures figures = gradients.Figures();  // r = 1/2: ρ = 0.5 / 1.25
  EXPECT_DOUBLE_EQ(*figures.correlation, 0.4);
  EXPECT_DOUBLE_EQ(*figures.amplification, 1.75);  // g and v alike: (1 + μ + μ²)
  EXPECT_DOUBLE_EQ(*figures.effective_lr, 2 * (1 + 0.5 / 0.8));
}

TEST(OuterGradients, ForgetWhatIsOlderThanSixteenRounds) {
  OuterGradients gradients;
  gradients.Add(1, kHalf, {.gg = 1e6, .gv = -1e5, .vv = 1});
  for (int i = 2; i <= 17; ++i) gradients.Add(i, kHalf, {.gg = 2, .gv = 1, .vv = 1});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, 0.4);
}

TEST(OuterGradients, BeginAnewWhereTheVersionGoesBack) {
  OuterGradients gradients;
  gradients.Add(7, kHalf, {.gg = 100, .gv = -10, .vv = 1});
  gradients.Add(7, kHalf, {.gg = 2, .gv = 1, .vv = 1});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, 0.4);
}

TEST(OuterGradients, BeyondWhatACorrelationCanBeStayWithinIt) {
  OuterGradients gradients;
  gradients.Add(1, kHalf, {.gg = 1, .gv = 100, .vv = 1e4});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, 1);
  EXPECT_DOUBLE_EQ(*gradients.Figures().effective_lr, 4);  // η / (1 − μ)
  gradients.Add(2, kHalf, {.gg = 1, .gv = -1000, .vv = 1e6});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, -1);
}

TEST(OuterGradients, OfZeroHaveANormAndNothingElse) {
  OuterGradients gradients;
  gradients.Add(1, kHalf, {.gg = 0, .gv = 0, .vv = 4});
  const OuterGradientFigures figures = gradients.Figures();
  EXPECT_DOUBLE_EQ(*figures.norm, 0);
  EXPECT_FALSE(figures.amplification || figures.correlation);
}

}  // namespace
}  // namespace causeway::server
