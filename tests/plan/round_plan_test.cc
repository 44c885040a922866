#include "plan/round_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "codecs/chunk_plan.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "plan/round_time.h"
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

constexpr double kMbit = 1e6 / 8;  // bytes/s

LinkRate Link(double mbit) { return {mbit * kMbit, mbit * kMbit}; }

// 30.8 M parameters in 8 fragments, 4 sites, a coordinator behind a link like a site's: a round computes for 3.2 s.
RoundTimeInput FourSites(double mbit, double bits_per_value) {
  RoundTimeInput input{.sites = 4, .sync_every = 128, .step_s = 0.025, .payload_share = 1, .round_trip_s = 0.05};
  input.site_link = input.hub_link = Link(mbit);
  constexpr int64_t kParameters = 30'800'000 / 8;
  const auto bytes = static_cast<int64_t>(kParameters * bits_per_value / 8);
  input.fragments.assign(8, {kParameters, bytes, bytes});
  return input;
}

// One fragment, one site, a link one way of which a transfer takes 3 s and back 2 s.
RoundTimeInput OneFragment(int64_t delay) {
  RoundTimeInput input{.sites = 1, .sync_every = 10, .delay = delay, .step_s = 1, .payload_share = 1};
  input.site_link = {100, 200};
  input.fragments = {{1000, 300, 400}};
  input.round_trip_s = 0.5;
  return input;
}

TEST(RoundTime, WithTheLeastDelayTheUtilizationIsTheBoundOfTheBusiestLink) {
  const struct {
    double mbit, bits, bound;
  } cases[] = {{10, 32, .0081},     {50, 32, .0406},  {200, 32, .1623},  {1000, 32, .8117},   {10, 4.0625, .0639},
               {50, 4.0625, .3197}, {200, 4.0625, 1}, {1000, 4.0625, 1}, {10, 1.0625, .2445}, {50, 1.0625, 1}};
  for (const auto& that : cases) {
    const RoundTime round = PredictRound(FourSites(that.mbit, that.bits));
    EXPECT_NEAR(round.bound, that.bound, 1e-4) << that.mbit << " Mbit/s, " << that.bits << " bits";
    EXPECT_NEAR(round.utilization, round.bound, 0.002 * round.bound) << that.mbit << " Mbit/s, " << that.bits;
    EXPECT_NEAR(round.hub_in_busy_s, 4 * 30.8e6 * that.bits / (that.mbit * 1e6), 0.001 * round.hub_in_busy_s);
    EXPECT_NEAR(round.hub_in_busy_s, 4 * round.site_up_busy_s, 1e-9 * round.hub_in_busy_s);
  }
}

TEST(RoundTime, AtTheSitesALinkCarriesBothLegsWithoutItsOwnPart) {
  for (int sites : {2, 4, 8}) {
    RoundTimeInput input = FourSites(50, 4.0625);
    input.sites = sites;
    input.shards_at_sites = true;
    const RoundTime round = PredictRound(input);
    const double busy_s = 2 * (1 - 1.0 / sites) * 30.8e6 * 4.0625 / 50e6;
    EXPECT_NEAR(round.site_up_busy_s, busy_s, 1e-3 * busy_s) << sites;
    EXPECT_EQ(round.hub_in_busy_s, 0);
    EXPECT_NEAR(round.bound, std::min(1.0, 3.2 / busy_s), 1e-3) << sites;
    EXPECT_LE(round.utilization, round.bound);
    EXPECT_GE(round.utilization, 0.9 * round.bound) << sites;
  }
}

TEST(RoundTime, OneFragmentWithoutDelayWaitsForItsWholeWay) {
  const RoundTime round = PredictRound(OneFragment(0));
  EXPECT_DOUBLE_EQ(round.compute_s, 10);
  EXPECT_NEAR(round.stall_s, 3 + 2 + 0.5, 1e-9);  // up, down, a round trip
  EXPECT_NEAR(round.utilization, 10 / 15.5, 1e-12);
  ASSERT_EQ(round.fragments.size(), 1u);
  EXPECT_NEAR(round.fragments[0].in_flight_s, 5.5, 1e-9);
  EXPECT_NEAR(round.fragments[0].slack_s, -5.5, 1e-9);
}

TEST(RoundTime, EachStepOfDelayTakesAStepOffTheStall) {
  for (int64_t delay = 0; delay <= 5; ++delay) {
    EXPECT_NEAR(PredictRound(OneFragment(delay)).stall_s, 5.5 - static_cast<double>(delay), 1e-9) << delay;
  }
  const RoundTime round = PredictRound(OneFragment(6));
  EXPECT_EQ(round.stall_s, 0);
  EXPECT_EQ(round.utilization, 1);
  EXPECT_NEAR(round.fragments[0].slack_s, 0.5, 1e-9);
  EXPECT_EQ(LeastDelay(OneFragment(0)), 6);
}

TEST(RoundTime, CodecAndMergeTakeTheirTimeOnTheWay) {
  RoundTimeInput input = OneFragment(0);
  input.codec_s_per_value = 0.0001;  // 0.1 s each way
  input.merge_s_per_value = 0.0003;
  EXPECT_NEAR(PredictRound(input).stall_s, 5.5 + 0.1 + 0.3 + 0.1, 1e-9);
}

TEST(RoundTime, AHubCarriesThePayloadOfAllSites) {
  RoundTimeInput input = OneFragment(0);
  input.sites = 5;
  input.hub_link = {250, 1e9};  // five times 300 bytes take 6 s; back it does not count
  EXPECT_NEAR(PredictRound(input).stall_s, 6 + 2 + 0.5, 1e-5);
  input.hub_link = {1e9, 1e9};  // no narrower than a site's link: chunks flow through both at once
  EXPECT_NEAR(PredictRound(input).stall_s, 3 + 2 + 0.5, 1e-5);
}

TEST(RoundTime, HeadersTakeTheirShareOfALink) {
  RoundTimeInput input = OneFragment(0);
  input.payload_share = 0.5;
  EXPECT_NEAR(PredictRound(input).stall_s, 2 * (3 + 2) + 0.5, 1e-9);
}

TEST(RoundTime, FragmentsInFlightQueueForTheLink) {
  RoundTimeInput input{.sites = 1, .sync_every = 4, .delay = 3, .step_s = 1, .payload_share = 1};
  input.site_link = {100, kUnlimited};
  input.fragments.assign(4, {1, 150, 0});  // 1.5 s each, one a step: the link is busy for 6 s a round of 4 s
  const RoundTime round = PredictRound(input);
  EXPECT_NEAR(round.bound, 4.0 / 6, 1e-12);
  EXPECT_NEAR(round.round_s, 6, 0.01);
  EXPECT_GT(round.fragments[0].in_flight_s, 2.9);  // it waited for another one
}

// A link that is 2 % too slow, and a delay of nearly a round, take many rounds until queues are full.
TEST(RoundTime, TheUtilizationNeverExceedsTheBound) {
  for (double mbit : {1180, 1200, 1220, 1228}) {
    RoundTimeInput input = FourSites(mbit, 32);
    input.delay = 127;
    const RoundTime round = PredictRound(input);
    EXPECT_LT(round.bound, 1);
    EXPECT_LE(round.utilization, round.bound * (1 + 1e-9)) << mbit;
    EXPECT_GE(round.utilization, round.bound * 0.99) << mbit;
  }
}

TEST(RoundTime, FasterLinksFewerBitsAndMoreDelayNeverStallMore) {
  double before = 0;
  for (double mbit : {5, 10, 20, 50, 100, 200, 500, 1000, 2000}) {
    const double utilization = PredictRound(FourSites(mbit, 32)).utilization;
    EXPECT_GE(utilization, before * (1 - 1e-9)) << mbit;
    before = utilization;
  }
  before = 0;
  for (double bits : {32., 16., 8.0625, 4.0625, 2.0625, 1.0625}) {
    const double utilization = PredictRound(FourSites(50, bits)).utilization;
    EXPECT_GE(utilization, before * (1 - 1e-9)) << bits;
    before = utilization;
  }
  before = 0;
  RoundTimeInput input = FourSites(200, 4.0625);
  for (int64_t delay = 0; delay < 128; ++delay) {
    input.delay = delay;
    const double utilization = PredictRound(input).utilization;
    EXPECT_GE(utilization, before * (1 - 1e-9)) << delay;
    before = utilization;
  }
}

TEST(RoundTime, TheLeastDelayIsTheLeast) {
  RoundTimeInput input = FourSites(1000, 4.0625);
  const int64_t least = LeastDelay(input);
  input.delay = least;
  EXPECT_EQ(PredictRound(input).stall_s, 0);
  input.delay = least - 1;
  EXPECT_GT(PredictRound(input).stall_s, 0);
}

TEST(RoundTime, FragmentsThatTakeTurnsHaveALowerPeakThanTheWholeModelAtOnce) {
  RoundTimeInput whole = FourSites(1000, 32);
  whole.hub_link = {};
  RoundTimeInput parts = whole;
  const int64_t bytes = 8 * whole.fragments[0].up_bytes;
  whole.fragments.assign(1, {30'800'000, bytes, bytes});
  const RoundTime at_once = PredictRound(whole), in_turn = PredictRound(parts);
  ASSERT_EQ(at_once.stall_s, 0);
  ASSERT_EQ(in_turn.stall_s, 0);
  EXPECT_NEAR(at_once.up_bytes_per_s, in_turn.up_bytes_per_s, 1);
  EXPECT_NEAR(at_once.up_peak_bytes_per_s, static_cast<double>(bytes), 1);  // 0.99 s at full rate
  EXPECT_LE(in_turn.up_peak_bytes_per_s, 1.25 * in_turn.up_bytes_per_s);
  EXPECT_GE(in_turn.up_peak_bytes_per_s, in_turn.up_bytes_per_s);
}

TEST(RoundTime, TheCoordinatorHoldsWhatAllSitesHaveInFlight) {
  EXPECT_EQ(PredictRound(OneFragment(0)).contributions_bytes, 300);
  const RoundTimeInput saturated = FourSites(50, 4.0625);
  const double fragment = 4.0 * static_cast<double>(saturated.fragments[0].up_bytes);
  const double held = PredictRound(saturated).contributions_bytes;
  EXPECT_GE(held, fragment);
  EXPECT_LE(held, 8 * fragment);
}

TEST(RoundTime, InQuorumModeNobodyWaitsAndSendsAreSkippedInstead) {
  RoundTimeInput input = FourSites(10, 4.0625);
  input.delay = 64;
  input.waits = false;
  const RoundTime round = PredictRound(input);
  EXPECT_EQ(round.stall_s, 0);
  EXPECT_EQ(round.utilization, 1);
  EXPECT_LT(round.sent_share, 0.1);
  EXPECT_GT(round.sent_share, 0.01);
  EXPECT_LE(round.hub_in_busy_s, round.round_s * 1.01);
}

TEST(RoundTime, TheLeastRateIsWhereTheUtilizationIsReached) {
  const RoundTimeInput input = FourSites(200, 4.0625);
  const std::optional<double> rate = LeastRate(input, PlannedLink::kHub, 0.99);
  ASSERT_TRUE(rate.has_value());
  RoundTimeInput tried = input;
  tried.hub_link = {*rate, *rate};
  EXPECT_GE(PredictRound(tried).utilization, 0.99);
  tried.hub_link = {*rate * 0.99, *rate * 0.99};
  EXPECT_LT(PredictRound(tried).utilization, 0.99);

  EXPECT_FALSE(LeastRate(FourSites(10, 4.0625), PlannedLink::kSite, 0.99).has_value());  // the hub is too slow
}

}  // namespace
}  // namespace causeway::plan
