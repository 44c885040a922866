#include "plan/partition.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/random.h"

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;

core::LinkLevels Frontier(int nodes) {
  return {.site = {{.name = "pair", .of = 2, .bytes_per_s = 200e9},
                   {.name = "node", .of = 4, .bytes_per_s = 100e9},
                   {.name = "site", .of = nodes, .bytes_per_s = 12.5e9}},
          .wan = {}};
}

PartitionPlan Plan(const std::string& name, int nodes, double parameters = 20e9) {
  const core::LinkLevels levels = Frontier(nodes);
  const std::vector<PartitionStrategy> known = KnownStrategies(levels);
  const auto strategy = std::ranges::find(known, name, &PartitionStrategy::name);
  EXPECT_NE(strategy, known.end()) << name;
  const auto plan = PlanPartition({.parameters = parameters, .levels = levels}, *strategy);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// 20 billion parameters, 8 ranks a node.
TEST(Partition, ARankHoldsWhatTheThreeLevelTableSays) {
  struct Row {
    int nodes;
    double zero3, zero_plus, three;
  };
  for (const Row& row : {Row{1, 40, 45, 55}, Row{2, 20, 25, 40}, Row{4, 10, 15, 32.5}, Row{8, 5, 10, 28.75},
                         Row{16, 2.5, 7.5, 26.88}, Row{32, 1.25, 6.25, 25.94}, Row{48, 0.83, 5.83, 25.63}}) {
    EXPECT_NEAR(Plan("ZeRO-3", row.nodes).memory_bytes() / 1e9, row.zero3, 0.006) << row.nodes;
    EXPECT_NEAR(Plan("ZeRO++", row.nodes).memory_bytes() / 1e9, row.zero_plus, 0.006) << row.nodes;
    EXPECT_NEAR(Plan("three levels", row.nodes).memory_bytes() / 1e9, row.three, 0.006) << row.nodes;
  }
}

TEST(Partition, BetweenNodesCrossesWhatTheTableSays) {
  EXPECT_NEAR(Plan("ZeRO-3", 48).flat[2].micro_batch / 1e9, 119.7, 0.05);
  EXPECT_NEAR(Plan("ZeRO++", 48).flat[2].micro_batch / 1e9, 29.9, 0.05);
  const PartitionPlan three = Plan("three levels", 48);
  EXPECT_NEAR(three.hierarchical[2].step / 1e9, 4.9 + 4.9, 0.01);
  EXPECT_EQ(three.hierarchical[2].micro_batch, 0);
}

TEST(Partition, FlatIsNeverLessOnTheSlowestLevelThanHierarchicalAndOneLevelIsBoth) {
  for (const PartitionStrategy& strategy : KnownStrategies(Frontier(6))) {
    const PartitionPlan plan = Plan(strategy.name, 6);
    EXPECT_GE(plan.flat[2].micro_batch, plan.hierarchical[2].micro_batch) << strategy.name;
    EXPECT_GE(plan.flat[2].step + 1, plan.hierarchical[2].step) << strategy.name;
  }
  const core::LinkLevels one{.site = {{.name = "site", .of = 8, .bytes_per_s = 1}}, .wan = {}};
  const auto plan = PlanPartition({.parameters = 1e6, .levels = one}, {.weights = 0, .gradients = 0, .optimizer = 0});
  EXPECT_EQ(plan->flat[0].micro_batch, plan->hierarchical[0].micro_batch);
  EXPECT_DOUBLE_EQ(plan->flat[0].micro_batch, 3 * 2e6 * 7 / 8);
}

// Over levels as over one: a gather brings a rank all but its own part, an all-reduce twice that.
TEST(Partition, BytesOfAllLevelsTogetherAreThoseOfOneGroup) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const auto draw = [&](uint64_t what, int most) {
      return static_cast<int>(core::HashCombine(seed, what) % static_cast<uint64_t>(most));
    };
    core::LinkLevels levels;
    double ranks = 1;
    for (int l = 0; l < 2 + draw(0, 7); ++l) {
      levels.site.push_back({.name = std::to_string(l), .of = 1 + draw(10 + l, 6), .bytes_per_s = 1});
      ranks *= static_cast<double>(levels.site.back().of);
    }
    const double parameters = 1 + draw(1, 1'000'000);
    const int top = static_cast<int>(levels.site.size()) - 1;
    const auto zero3 = PlanPartition({.parameters = parameters, .levels = levels},
                                     {.weights = top, .gradients = top, .optimizer = top});
    const auto alike = PlanPartition({.parameters = parameters, .levels = levels}, {});
    double gathered = 0, reduced = 0;
    for (int l = 0; l <= top; ++l) {
      gathered += zero3->hierarchical[static_cast<size_t>(l)].micro_batch;
      reduced += alike->hierarchical[static_cast<size_t>(l)].step;
    }
    ASSERT_NEAR(gathered, 3 * 2 * parameters * (ranks - 1) / ranks, 1e-6 * parameters) << seed;
    ASSERT_NEAR(reduced, 2 * 2 * parameters * (ranks - 1) / ranks, 1e-6 * parameters) << seed;
    ASSERT_NEAR(zero3->memory_bytes() * ranks, 16 * parameters, 1e-6 * parameters) << seed;
  }
}

TEST(Partition, StatesThatAreNotNestedAndLevelsThatAreNotThereAreNamed) {
  const core::LinkLevels levels = Frontier(2);
  const auto words = [&](const PartitionStrategy& strategy) {
    return std::string(PlanPartition({.parameters = 1e9, .levels = levels}, strategy).status().message());
  };
  EXPECT_EQ(words({.weights = 2, .gradients = 1, .optimizer = 2}),
            "expected weights within gradients within optimizer, got weights site, gradients node, optimizer site");
  EXPECT_THAT(words({.weights = 0}), HasSubstr("weights: expected rank, as gradients and optimizer are, got pair"));
  EXPECT_THAT(words({.weights = 3}), HasSubstr("weights: expected a level below 3, got 3"));
  EXPECT_EQ(std::string(LevelOf(levels, "rack").status().message()),
            "expected one of rank, pair, node, site, got rack");
  EXPECT_EQ(*LevelOf(levels, "site"), 2);
}

TEST(Partition, WanBytesAreThoseOfTheCodecsChunks) {
  EXPECT_NEAR(WanBytes(20e9, core::CodecId::kInt4) / 20e9, 0.5, 0.02);
}

}  // namespace
}  // namespace causeway::plan
