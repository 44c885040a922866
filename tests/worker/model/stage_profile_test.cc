#include "worker/model/stage_profile.h"

#include <gtest/gtest.h>

#include "plan/pipeline_planner.h"
#include "tests/worker/model/test_values.h"

namespace causeway::worker {
namespace {

TEST(StageProfile, ThePlannerReadsItAndEveryPartTakesTime) {
  core::RunConfig config = TinyRun();
  const auto json = ProfileStages(config, /*passes=*/3);
  ASSERT_TRUE(json.ok()) << json.status();
  const auto costs = plan::ReadPipelineCosts(*json, "profile");
  ASSERT_TRUE(costs.ok()) << costs.status() << *json;
  EXPECT_EQ(costs->layers, config.llama.num_hidden_layers);
  for (const int64_t time : {costs->layer.forward, costs->layer.input, costs->layer.weight, costs->head.forward,
                             costs->head.input, costs->head.weight}) {
    EXPECT_GT(time, 0) << *json;
  }
  EXPECT_GT(costs->layer_bytes, costs->message_bytes);
  config.model_kind = core::ModelKind::kSynthetic;
  EXPECT_EQ(ProfileStages(config).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway::worker
