#include "plan/round_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "codecs/chunk_plan.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "tests/plan/round_setting.h"

namespace causeway::plan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(RoundPlan, OffsetsCountAndTheDefaultOnesMayBeSpelledOut) {
  core::RunConfig config = RoundConfig();
  const RoundSetting setting = FourSites(200);
  const double spread = PlanOf(config, setting).round.utilization;
  config.sync.fragment_offsets = {16, 32, 48, 64, 80, 96, 112, 0};
  EXPECT_EQ(PlanOf(config, setting).round.utilization, spread);
  config.sync.fragment_offsets.assign(8, 5);
  EXPECT_NE(PlanOf(config, setting).round.utilization, spread);
  EXPECT_TRUE(MakeSweep(config, setting).ok());
}

TEST(RoundPlan, BytesAreThoseOfTheChunksThatASiteSends) {
  core::RunConfig config = RoundConfig();
  config.codec.up = core::CodecId::kRotatedSign;
  const RoundPlan plan = PlanOf(config, FourSites(1000));
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

TEST(RoundPlan, ItSaysWhetherAHubOrShardsAtTheSitesFitTheLinks) {
  core::RunConfig config = RoundConfig();
  config.sync.fragment_sync_delay = core::kAutoDelay;
  RoundSetting setting = FourSites(50);
  const RoundPlan hub = PlanOf(config, setting);
  EXPECT_THAT(hub.placement, HasSubstr("placement: sites is the better one"));
  EXPECT_THAT(hub.placement,
              HasSubstr("it carries 4 payloads in each direction, a site's link with shards at the sites 1.50"));
  config.placement = core::Placement::kSites;
  config.sync.parts = 4;
  const RoundPlan sites = PlanOf(config, setting);
  EXPECT_EQ(sites.round.utilization, hub.other_placement_utilization);
  EXPECT_EQ(sites.other_placement_utilization, hub.round.utilization);
  EXPECT_GT(sites.round.utilization, 2 * hub.round.utilization);
  EXPECT_EQ(sites.state_bytes, hub.state_bytes / 4);
  setting.hub_link = {};  // a hub whose link is no limit
  EXPECT_THAT(PlanOf(config, setting).placement, HasSubstr("placement: hub is the better one"));
}

TEST(RoundPlan, ALlamasParametersAreCountedFromItsConfig) {
  core::RunConfig config;  // embedding 256 × 128, four layers, final norm
  config.run_id = "plan";
  const RoundPlan plan = PlanOf(config, FourSites(1000));
  EXPECT_EQ(plan.parameters, 256 * 128 + 4 * (4 * 128 * 128 + 3 * 344 * 128 + 2 * 128) + 128);
}

TEST(RoundPlan, ItSaysWhatKeepsTheSitesFromComputing) {
  core::RunConfig config = RoundConfig();
  EXPECT_THAT(PlanOf(config, FourSites(200)).bottleneck, StartsWith("the overlap: fragment_sync_delay 1 gives"));
  config.sync.fragment_sync_delay = 100;
  EXPECT_THAT(PlanOf(config, FourSites(200)).bottleneck, StartsWith("none: every update is there"));
  EXPECT_THAT(PlanOf(config, FourSites(10)).bottleneck, StartsWith("the coordinator's link, "));
  RoundSetting setting = FourSites(10);
  setting.hub_link = {};
  EXPECT_THAT(PlanOf(config, setting).bottleneck, StartsWith("a site's link, "));
  config.sync.mode = core::SyncMode::kQuorum;
  EXPECT_THAT(PlanOf(config, setting).bottleneck, HasSubstr("of the sends go out"));
}

TEST(RoundPlan, TheRatesItNamesAreEnough) {
  core::RunConfig config = RoundConfig();
  config.sync.fragment_sync_delay = core::kAutoDelay;
  RoundSetting setting = FourSites(200);
  const RoundPlan plan = PlanOf(config, setting);
  ASSERT_TRUE(plan.hub_bytes_per_s.has_value());
  ASSERT_TRUE(plan.site_bytes_per_s.has_value());
  // At 4.06 bits, 4 sites and a round of 3.2 s, before headers: 156 Mbit/s and 39.
  EXPECT_NEAR(*plan.hub_bytes_per_s * 8 / 1e6, 156.4 / kPayloadShare, 0.05 * 156);
  EXPECT_NEAR(*plan.site_bytes_per_s * 8 / 1e6, 39.1 / kPayloadShare, 0.05 * 39);
  setting.hub_link = {*plan.hub_bytes_per_s, *plan.hub_bytes_per_s};
  EXPECT_GE(PlanOf(config, setting).round.utilization, 0.998);
}

TEST(RoundPlan, MemoryIsStateContributionsInFlightAndTheProgram) {
  core::RunConfig config = RoundConfig();
  RoundPlan plan = PlanOf(config, FourSites(1000));
  EXPECT_DOUBLE_EQ(plan.state_bytes, 12 * 30.8e6);
  EXPECT_DOUBLE_EQ(plan.memory_bytes(), 12 * 30.8e6 + 1.1 * plan.round.contributions_bytes + 150e6);
  config.codec.feedback_down = 0;
  EXPECT_DOUBLE_EQ(PlanOf(config, FourSites(1000)).state_bytes, 8 * 30.8e6);
}

TEST(RoundPlan, ASweepHasEachIntervalWithEachCodec) {
  const auto rows = MakeSweep(RoundConfig(), FourSites(200));
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
}

TEST(RoundPlan, AModelWithFewerTensorsThanFragmentsIsRefused) {
  core::RunConfig config = RoundConfig();
  config.sync.num_fragments = 9;
  const auto plan = MakeRoundPlan(config, FourSites(200));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("sync.num_fragments"));
}

}  // namespace
}  // namespace causeway::plan
