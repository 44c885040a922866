#include "ctl/pipeline_command.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "plan/pipeline_generators.h"

namespace causeway::ctl {
namespace {

using nlohmann::json;

TEST(PipelineCommand, ItsJsonIsThatOfTheGoldenSchedules) {
  std::ifstream file(GOLDEN_SCHEDULES);
  const json golden = json::parse(file);
  for (const json& one : golden["cases"]) {
    const std::string name = one["schedule"];
    plan::GeneratorInput input{.devices = one["D"], .micro_batches = one["N"]};
    const bool interleaved = name.starts_with("interleaved_v");
    if (interleaved) input.chunks = std::stoi(name.substr(name.size() - 1));
    const auto schedule = plan::Generate(interleaved ? "interleaved" : name, input);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const auto text = PipelineJson(name, *schedule, 0);
    ASSERT_TRUE(text.ok()) << text.status();
    const json made = json::parse(*text);
    for (const auto& [key, value] : one.items()) EXPECT_EQ(made[key], value) << name << " " << key;
    EXPECT_EQ(made["sync"].size(), input.devices);
  }
}

TEST(PipelineCommand, LatencyLengthensAStep) {
  const auto schedule = plan::Generate("1f1b", {.devices = 2, .micro_batches = 2});
  EXPECT_EQ(json::parse(*PipelineJson("1f1b", *schedule, 0))["makespan"], "9");
  EXPECT_EQ(json::parse(*PipelineJson("1f1b", *schedule, 0.25))["makespan"], "19/2");
}

}  // namespace
}  // namespace causeway::ctl
