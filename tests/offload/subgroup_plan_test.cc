#include "offload/subgroup_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::offload {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBillion = 1'000'000'000;

// Deep Optimizer States, four A100s, the model called 20B: 15.58e9 parameters, each GPU with a quarter of them. Host
// memory is what limits it.
constexpr int64_t kPublishedParameters = 15'580'000'000;
constexpr Bandwidths kPublished = {.dram = 134.5e9, .to_device = 25e9, .to_host = 25e9};

double PublishedUpdate(int64_t k) {
  return PredictUpdate(kPublishedParameters, 1.0 / static_cast<double>(k), kPublished, 0, 4, kSeparateCopyTraffic);
}

TEST(SubgroupPlan, ModelGivesThePublishedUpdateTimeOfEveryInterleave) {
  EXPECT_NEAR(PublishedUpdate(2), 3.49, 0.02);
  const std::pair<int64_t, double> published[] = {{2, 5.7}, {3, 5.6}, {4, 5.3}, {6, 5.1}, {8, 5.1}, {10, 5.1}};
  // In billions of nominal parameters a second, fitted where k is 2.
  const double nominal = 5.7 * PublishedUpdate(2);
  for (const auto& [k, rate] : published) EXPECT_NEAR(nominal / PublishedUpdate(k) / rate, 1, 0.06) << k;
}

TEST(SubgroupPlan, UpdateIsAsSlowAsTheSlowestOfWhatItUses) {
  const Bandwidths rates = {.dram = 100e9, .to_device = 10e9, .to_host = 5e9, .cpu_parameters = 1e9};
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 0, rates), 1.0);                       // the CPU's arithmetic
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 1, rates), 12 / 5.0);                  // to the host
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 0.5, {.dram = 1e9}), 28.0);            // (32 + 24) / 2
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 0.5, {.to_device = 1e9}, 0, 2), 3.5);  // two devices: (12 + 2) / 2 / 2
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 1, {.to_device = 60e9, .to_host = 60e9, .both_ways = 80e9}), 0.3);
}

TEST(SubgroupPlan, AutoTakesWhatTheModelFindsFastest) {
  const core::OffloadConfig automatic = {.subgroup = kBillion / 10};
  // The bus is fast against memory: everything through the device.
  const SubgroupPlan streamed =
      PlanSubgroups(automatic, kBillion, {.dram = 100e9, .to_device = 60e9, .to_host = 60e9, .cpu_parameters = 3e9});
  EXPECT_EQ(streamed.k, 1);
  EXPECT_DOUBLE_EQ(streamed.predicted_s, 0.24);
  EXPECT_THAT(streamed.reason, HasSubstr("cpu 0.352 s"));
  // Slow: the CPU alone.
  EXPECT_EQ(
      PlanSubgroups(automatic, kBillion, {.dram = 100e9, .to_device = 2e9, .to_host = 2e9, .cpu_parameters = 3e9}).k,
      core::kAllOnCpu);
  // Between: as much as the bus carries meanwhile.
  const Bandwidths between = {.dram = 100e9, .to_device = 20e9, .to_host = 20e9, .cpu_parameters = 1.5e9};
  const SubgroupPlan mixed = PlanSubgroups(automatic, kBillion, between);
  EXPECT_EQ(mixed.k, 3);
  for (int64_t k : {int64_t{1}, int64_t{2}, int64_t{4}, core::kAllOnCpu}) {
    EXPECT_LE(mixed.predicted_s, PlanSubgroups({.k = k, .subgroup = kBillion / 10}, kBillion, between).predicted_s)
        << k;
  }
}

TEST(SubgroupPlan, ConfigOverrules) {
  const SubgroupPlan plan = PlanSubgroups({.k = 3, .subgroup = 100}, 1050, {.dram = 1, .to_device = 1});
  EXPECT_EQ(plan.k, 3);
  EXPECT_EQ(plan.num_subgroups(), 11);
  EXPECT_EQ(plan.Size(10), 50);
  EXPECT_TRUE(plan.OnDevice(0) && plan.OnDevice(3) && plan.OnDevice(9));
  EXPECT_FALSE(plan.OnDevice(1) || plan.OnDevice(10));
  EXPECT_DOUBLE_EQ(plan.DeviceShare(), 400.0 / 1050);
}

TEST(SubgroupPlan, WithoutADeviceAllIsOnTheCpuAndTheReasonSaysWhatWasAskedFor) {
  const SubgroupPlan plan = PlanSubgroups({.k = 2, .subgroup = 10}, 100, {.dram = 1e9, .cpu_parameters = 1e3});
  EXPECT_EQ(plan.k, core::kAllOnCpu);
  EXPECT_DOUBLE_EQ(plan.predicted_s, 0.1);
  EXPECT_THAT(plan.reason, HasSubstr("no device; the config's k is 2"));
}

}  // namespace
}  // namespace causeway::offload
