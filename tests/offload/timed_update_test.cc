// The plan's k beside every other, on machines that are played in virtual time.
#include <gtest/gtest.h>

#include <cmath>

#include "offload/interleaved_update.h"
#include "tests/offload/timed_device.h"

namespace causeway::offload {
namespace {

constexpr int64_t kParameters = 48'000, kSubgroup = 1'000;  // times are a million times those of 48 billion

double Measured(int64_t k, const Bandwidths& rates) {
  const SubgroupPlan plan{.parameters = kParameters, .subgroup = kSubgroup, .k = k};
  std::vector<float> p(kParameters), m(kParameters), v(kParameters), gradients(kParameters);
  std::vector<uint16_t> copy(kParameters);
  TimedDevice device;
  core::ThreadTeam team(1);
  const auto update = InterleavedUpdate::OnDevice({p, m, v}, {{kParameters, true}}, plan, &team, nullptr, &device,
                                                  {gradients.data(), GradientType::kFloat32, copy.data()});
  EXPECT_TRUE(update.ok());
  (*update)->GradientsReady(0, kParameters);
  EXPECT_TRUE((*update)->Step({}, 1).ok());
  return device.Play(rates);
}

struct Machine {
  const char* name;
  Bandwidths rates;
};

class TimedUpdate : public ::testing::TestWithParam<Machine> {};

TEST_P(TimedUpdate, TheChosenInterleaveIsWithinThreePercentOfTheBest) {
  const Bandwidths& rates = GetParam().rates;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k <= 48; ++k) best = std::min(best, Measured(k, rates));
  const SubgroupPlan plan = PlanSubgroups({.k = core::kAutoInterleave, .subgroup = kSubgroup}, kParameters, rates);
  const double chosen = Measured(plan.k, rates);
  EXPECT_LE(chosen, 1.03 * best) << "k " << core::InterleaveName(plan.k);
  EXPECT_NEAR(chosen, plan.predicted_s, 0.13 * plan.predicted_s);
}

INSTANTIATE_TEST_SUITE_P(
    Machines, TimedUpdate,
    ::testing::Values(
        Machine{"four_a100_of_the_paper", {.dram = 134.5e9, .to_device = 25e9, .to_host = 25e9, .cpu_parameters = 9e9}},
        Machine{"h200", {.dram = 300e9, .to_device = 55e9, .to_host = 55e9, .cpu_parameters = 8e9}},
        Machine{"slow_bus", {.dram = 60e9, .to_device = 6e9, .to_host = 6e9, .cpu_parameters = 1.5e9}},
        Machine{"slow_cpu", {.dram = 100e9, .to_device = 20e9, .to_host = 20e9, .cpu_parameters = 1.2e9}},
        Machine{"coherent_link", {.dram = 450e9, .to_device = 350e9, .to_host = 250e9, .cpu_parameters = 12e9}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace causeway::offload
