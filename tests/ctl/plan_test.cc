#include "ctl/plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codecs/chunk_plan.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "ctl/plan_text.h"
#include "formats/run_yaml.h"

namespace causeway::ctl {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// 30.8 M parameters in 8 fragments; a step takes 25 ms.
core::RunConfig Config() {
  std::string yaml =
      "run_id: plan\nsync: {sync_every: 128, num_fragments: 8, fragment_sync_delay: 1}\n"
      "model:\n  kind: synthetic\n  tensors:\n";
  for (int i = 0; i < 8; ++i) yaml += "    - {name: w" + std::to_string(i) + ", shape: [3850000]}\n";
  const auto config = formats::ParseRunYaml(yaml, "run.yaml");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

PlanSetting FourSites(double mbit) {
  const core::LinkRate link{mbit * 1e6 / 8, mbit * 1e6 / 8};
  return {.sites = 4, .step_s = 0.025, .round_trip_s = 0.05, .site_link = link, .hub_link = link};
}

Plan PlanOf(const core::RunConfig& config, const PlanSetting& setting) {
  absl::StatusOr<Plan> plan = MakePlan(config, setting);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(Plan, OffsetsCountAndTheDefaultOnesMayBeSpelledOut) {
  core::RunConfig config = Config();
  const PlanSetting setting = FourSites(200);
  const double spread = PlanOf(config, setting).round.utilization;
  config.sync.fragment_offsets = {16, 32, 48, 64, 80, 96, 112, 0};
  EXPECT_EQ(PlanOf(config, setting).round.utilization, spread);
  config.sync.fragment_offsets.assign(8, 5);
  EXPECT_NE(PlanOf(config, setting).round.utilization, spread);
  EXPECT_TRUE(MakeSweep(config, setting).ok());
}

TEST(Plan, BytesAreThoseOfTheChunksThatASiteSends) {
  core::RunConfig config = Config();
  config.codec.up = core::CodecId::kRotatedSign;
  const Plan plan = PlanOf(config, FourSites(1000));
  EXPECT_EQ(plan.parameters, 30'800'000);
  const auto map = core::BuildFragmentMap(core::ModelManifest(config), 8, config.sync.fragment_assignment);
  ASSERT_TRUE(map.ok());
  int64_t up = 0;
  for (const core::Fragment& fragment : map->fragments()) {
    for (const auto& chunk : codecs::PlanChunks(fragment, codecs::UpLeg(config))) {
      up += codecs::ChunkBytes(chunk.codec, chunk.values);
    }
  }
  EXPECT_DOUBLE_EQ(plan.round.up_bytes, static_cast<double>(up));
  EXPECT_NEAR(8 * plan.round.up_bytes / 30.8e6, 1.0625, 0.005);
  EXPECT_NEAR(8 * plan.round.down_bytes / 30.8e6, 4.0625, 0.005);  // int4, the default
}

TEST(Plan, ALlamasParametersAreCountedFromItsConfig) {
  core::RunConfig config;  // embedding 256 × 128, four layers, final norm
  config.run_id = "plan";
  const Plan plan = PlanOf(config, FourSites(1000));
  EXPECT_EQ(plan.parameters, 256 * 128 + 4 * (4 * 128 * 128 + 3 * 344 * 128 + 2 * 128) + 128);
}

TEST(Plan, ItSaysWhatKeepsTheSitesFromComputing) {
  core::RunConfig config = Config();
  EXPECT_THAT(PlanOf(config, FourSites(200)).bottleneck, StartsWith("the overlap: fragment_sync_delay 1 gives"));
  config.sync.fragment_sync_delay = 100;
  EXPECT_THAT(PlanOf(config, FourSites(200)).bottleneck, StartsWith("none: every update is there"));
  EXPECT_THAT(PlanOf(config, FourSites(10)).bottleneck, StartsWith("the coordinator's link, "));
  PlanSetting setting = FourSites(10);
  setting.hub_link = {};
  EXPECT_THAT(PlanOf(config, setting).bottleneck, StartsWith("a site's link, "));
  config.sync.mode = core::SyncMode::kQuorum;
  EXPECT_THAT(PlanOf(config, setting).bottleneck, HasSubstr("of the sends go out"));
}

TEST(Plan, TheRatesItNamesAreEnough) {
  core::RunConfig config = Config();
  config.sync.fragment_sync_delay = core::kAutoDelay;
  PlanSetting setting = FourSites(200);
  const Plan plan = PlanOf(config, setting);
  ASSERT_TRUE(plan.hub_bytes_per_s.has_value());
  ASSERT_TRUE(plan.site_bytes_per_s.has_value());
  // At 4.06 bits, 4 sites and a round of 3.2 s, before headers: 156 Mbit/s and 39.
  EXPECT_NEAR(*plan.hub_bytes_per_s * 8 / 1e6, 156.4 / core::kPayloadShare, 0.05 * 156);
  EXPECT_NEAR(*plan.site_bytes_per_s * 8 / 1e6, 39.1 / core::kPayloadShare, 0.05 * 39);
  setting.hub_link = {*plan.hub_bytes_per_s, *plan.hub_bytes_per_s};
  EXPECT_GE(PlanOf(config, setting).round.utilization, 0.998);
}

TEST(Plan, MemoryIsStateContributionsInFlightAndTheProgram) {
  core::RunConfig config = Config();
  Plan plan = PlanOf(config, FourSites(1000));
  EXPECT_DOUBLE_EQ(plan.state_bytes, 12 * 30.8e6);
  EXPECT_DOUBLE_EQ(plan.memory_bytes(), 12 * 30.8e6 + 1.1 * plan.round.contributions_bytes + 150e6);
  config.codec.feedback_down = 0;
  EXPECT_DOUBLE_EQ(PlanOf(config, FourSites(1000)).state_bytes, 8 * 30.8e6);
}

TEST(Plan, TextAndJsonSayTheSame) {
  const Plan plan = PlanOf(Config(), FourSites(200));
  const auto json = nlohmann::json::parse(PlanJson(plan));
  EXPECT_EQ(json["parameters"], 30'800'000);
  EXPECT_DOUBLE_EQ(json["utilization"], plan.round.utilization);
  EXPECT_DOUBLE_EQ(json["hub_mbit"], 200);
  EXPECT_DOUBLE_EQ(json["up"]["site_bytes_per_round"], plan.round.up_bytes);
  EXPECT_TRUE(json["site_needs_mbit"].is_null());  // with a delay of one step no link is fast enough
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, HasSubstr("30.8 M parameters in 8 fragments, 4 sites"));
  EXPECT_THAT(text, HasSubstr(plan.bottleneck));
}

TEST(Plan, ASweepHasEachIntervalWithEachCodec) {
  const auto rows = MakeSweep(Config(), FourSites(200));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 4u * 6u);
  for (const SweepRow& row : *rows) {
    double before = 0;
    for (const auto& utilization : row.utilization) {
      ASSERT_TRUE(utilization.has_value());
      EXPECT_GE(*utilization, before - 1e-9);
      before = *utilization;
    }
    EXPECT_GE(row.best_utilization, before - 1e-9);
  }
  EXPECT_EQ(rows->front().sync_every, 64);
  EXPECT_EQ(rows->back().sync_every, 512);
  const std::string text = SweepText(*rows, FourSites(200));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3 + 24);
}

TEST(Plan, AModelWithFewerTensorsThanFragmentsIsRefused) {
  core::RunConfig config = Config();
  config.sync.num_fragments = 9;
  const auto plan = MakePlan(config, FourSites(200));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("sync.num_fragments"));
}

}  // namespace
}  // namespace causeway::ctl
