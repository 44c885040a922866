// A run to plan, and a setting for it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "formats/run_yaml.h"
#include "plan/round_plan.h"

namespace causeway::plan {

// 30.8 M parameters in 8 fragments; a step takes 25 ms.
inline core::RunConfig RoundConfig() {
  std::string yaml =
      "run_id: plan\nsync: {sync_every: 128, num_fragments: 8, fragment_sync_delay: 1}\n"
      "model:\n  kind: synthetic\n  tensors:\n";
  for (int i = 0; i < 8; ++i) yaml += "    - {name: w" + std::to_string(i) + ", shape: [3850000]}\n";
  const auto config = formats::ParseRunYaml(yaml, "run.yaml");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

inline RoundSetting FourSites(double mbit) {
  const LinkRate link{mbit * 1e6 / 8, mbit * 1e6 / 8};
  return {.sites = 4, .step_s = 0.025, .round_trip_s = 0.05, .site_link = link, .hub_link = link};
}

inline RoundPlan PlanOf(const core::RunConfig& config, const RoundSetting& setting) {
  absl::StatusOr<RoundPlan> plan = MakeRoundPlan(config, setting);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

}  // namespace causeway::plan
