#include "plan/pipeline_planner.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "plan/pipeline_check.h"

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;

// A head of nearly five layers' forward, as at 124 M parameters.
PipelineCosts Costs(int layers = 12) {
  return {.layers = layers,
          .layer = {.forward = 1000, .input = 1100, .weight = 900},
          .embedding = {.forward = 50, .input = 0, .weight = 60},
          .head = {.forward = 4900, .input = 5000, .weight = 4800},
          .layer_bytes = 1e6,
          .message_bytes = 1e5};
}

TEST(SplitLayers, TheLongestStageIsAsShortAsAnyCutMakesIt) {
  for (const int layers : {4, 7, 12}) {
    const PipelineCosts costs = Costs(layers);
    const auto split = SplitLayers(costs, 4);
    ASSERT_TRUE(split.ok());
    const auto longest = [&](int a, int b, int c) {
      const int64_t layer = 3000, counts[] = {a, b - a, c - b, layers - c};
      int64_t most = 0;
      for (int s = 0; s < 4; ++s) most = std::max(most, counts[s] * layer + (s == 0 ? 110 : s == 3 ? 14'700 : 0));
      return most;
    };
    int64_t best = std::numeric_limits<int64_t>::max();
    for (int a = 1; a < layers; ++a) {
      for (int b = a + 1; b < layers; ++b) {
        for (int c = b + 1; c < layers; ++c) best = std::min(best, longest(a, b, c));
      }
    }
    const auto& s = *split;
    EXPECT_EQ(longest(s[0].last + 1, s[1].last + 1, s[2].last + 1), best) << layers;
    EXPECT_TRUE(s[0].embedding && s[3].head && s[3].last == layers - 1);
  }
  EXPECT_THAT(std::string(SplitLayers(Costs(3), 4).status().message()),
              HasSubstr("a layer for each of 4 stages, got 3"));
}

TEST(PlanPipeline, TheBestIsValidFitsAndItsP90HoldsOnOtherDraws) {
  const PlannerInput input{.devices = 4, .micro_batches = 8, .costs = Costs(), .memory_bytes = 20e6, .latency_ns = 200};
  const auto plans = PlanPipeline(input);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_GT(plans->size(), 3u);
  for (const PlannedPipeline& plan : *plans) {
    EXPECT_EQ(CheckPipeline(plan.file.schedule), absl::OkStatus()) << plan.name;
    EXPECT_LE(plan.peak_bytes, input.memory_bytes) << plan.name;
    EXPECT_GE(plan.p90, plans->front().p90);
    const int64_t others = MakespanP90(plan.file.schedule, plan.times, 100'000);
    EXPECT_NEAR(static_cast<double>(others), static_cast<double>(plan.p90), 0.01 * static_cast<double>(plan.p90));
  }
  const auto again = PlanPipeline(input);
  EXPECT_EQ(WritePipelineFile(again->front().file), WritePipelineFile(plans->front().file));
}

TEST(PlanPipeline, MemoryThatNoneFitsIsToldWithWhatTheSmallestNeeds) {
  PlannerInput input{.devices = 4, .micro_batches = 8, .costs = Costs(), .memory_bytes = 1e3};
  EXPECT_THAT(std::string(PlanPipeline(input).status().message()), HasSubstr("GB, got 1e-06 GB"));
  input.costs.layers = 2;
  EXPECT_THAT(std::string(PlanPipeline(input).status().message()), HasSubstr("got 2 layers for 4 devices"));
}

TEST(PlanPipeline, MemoryCountsTheWeightsOfEveryCopy) {
  PlannerInput input{.devices = 4, .micro_batches = 8, .costs = Costs()};
  const auto peak = [&](const std::string& name) {
    const std::vector<PlannedPipeline> plans = *PlanPipeline(input);
    return std::ranges::find(plans, name, &PlannedPipeline::name)->peak_bytes;
  };
  const double one = peak("1f1b"), two = peak("dualpipe");
  input.costs.layer_parameters = 1e6;
  input.costs.parameter_bytes = 16;
  // No cut has fewer than 12 ÷ 4 layers on some device; two copies have twice that in all.
  EXPECT_GE(peak("1f1b") - one, 3 * 16e6);
  EXPECT_GE(peak("dualpipe") - two, 2 * 3 * 16e6);
}

TEST(PlanPipeline, CopiesPayForTheirGradientsWhereTheLinkIsSlow) {
  PlannerInput input{.devices = 4, .micro_batches = 8, .costs = Costs(), .bytes_per_s = 1e12};
  const auto makespan = [&] {
    const std::vector<PlannedPipeline> plans = *PlanPipeline(input);
    return std::ranges::find(plans, "dualpipe", &PlannedPipeline::name)->makespan;
  };
  const int64_t free = makespan();
  input.costs.layer_parameters = 1e6;
  input.costs.gradient_bytes = 4;
  EXPECT_GE(makespan(), free + 8'000);  // a stage of two layers at least: 8 MB at 1 TB/s are 8 µs, none of it hidden
}

TEST(PipelineCosts, AreReadAndAWrongKeyIsNamed) {
  const auto costs = ReadPipelineCosts(
      R"({"layers": 2, "layer": {"forward_us": 1.5, "input_us": 2, "weight_us": 1}, "embedding": {"forward_us": 0,
      "input_us": 0, "weight_us": 0}, "head": {"forward_us": 4, "input_us": 4, "weight_us": 4}, "layer_bytes": 10,
      "message_bytes": 5})",
      "c.json");
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->layer.forward, 1500);
  EXPECT_EQ(costs->head.weight, 4000);
  EXPECT_EQ(costs->layer_parameters, 0);
  EXPECT_EQ(costs->parameter_bytes, 16);
  EXPECT_EQ(std::string(ReadPipelineCosts(R"({"layers": 0})", "c.json").status().message()),
            "c.json: layers: expected a number from 1 to 2000, got 0");
  const auto error = [](const char* text) { return std::string(ReadPipelineCosts(text, "c.json").status().message()); };
  EXPECT_EQ(error("nonsense"), "c.json: expected JSON, line 1, column 1: got nonsense");
  EXPECT_EQ(error("{\"layers\": 4,\n \"layer_bytes\": NaN}"),
            "c.json: expected JSON, line 2, column 17: got NaN, which JSON does not have");
  EXPECT_EQ(error("{\"layers\": 4, # all\n}"),
            "c.json: expected JSON, line 1, column 15: got a comment, which JSON does not have");
  const auto of_layer = [](const std::string& us) {
    return "{\"layers\": 2000, \"layer\": {\"forward_us\": " + us + ", \"input_us\": 0, \"weight_us\": 0}, " +
           R"("embedding": {"forward_us": 0, "input_us": 0, "weight_us": 0}, "head": {"forward_us": 0, "input_us": 0,
           "weight_us": 0}, "layer_bytes": 10, "message_bytes": 5})";
  };
  EXPECT_EQ(error(of_layer("1e15").c_str()), "c.json: layer.forward_us: expected a number from 0 to 1e+09, got 1e+15");
  EXPECT_EQ(error(of_layer("1e9").c_str()),
            "c.json: expected a micro-batch through all layers within 10000 s, got 2000000");
  EXPECT_EQ(error("[1]"), "c.json: expected a JSON object, got array");
}

}  // namespace
}  // namespace causeway::plan
