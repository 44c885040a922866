#include "ctl/pipeline_command.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(GridCommand, TheBestFiveTheBestWithoutTensorParallelismAndWhyAreShown) {
  std::vector<plan::GridRow> rows;
  for (int i = 0; i < 6; ++i) {
    rows.push_back({.tensor = i == 5 ? 1 : 2,
                    .pipeline = 4,
                    .data = 1,
                    .sequences = 1,
                    .micro_batches = 8,
                    .compute_s = 0.2,
                    .bubble_s = 0.05 + 0.01 * i});
  }
  const std::string text = GridText({.ranks = 8, .batch = 8}, rows);
  EXPECT_NE(text.find("8 ranks, 8 sequences a step; milliseconds, 6 cuts fit"), std::string::npos) << text;
  EXPECT_NE(text.find("without tensor parallelism"), std::string::npos) << text;
  EXPECT_NE(text.find("2 × 4 × 1, micro-batches of 1: 3.8 % less than 2 × 4 × 1, micro-batches of 1: 10.000 ms less in "
                      "the bubble"),
            std::string::npos)
      << text;
  const std::string lines = GridJson(rows);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 5);
  EXPECT_EQ(json::parse(lines.substr(0, lines.find('\n')))["bubble_share"], 3.0 / 11);
}

}  // namespace
}  // namespace causeway::ctl
