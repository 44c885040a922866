#include "plan/pipeline_trace.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "plan/pipeline_generators.h"
#include "plan/pipeline_svg.h"

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;

// Two devices, one micro-batch; each step as long as the numbers say, in microseconds.
std::string TraceOf(const std::vector<int>& lengths) {
  std::string text = "[\n";
  double begin = 0;
  for (size_t step = 0; step < lengths.size(); ++step) {
    const double part = lengths[step] / 4.0;
    double at = begin;
    for (const auto& [name, device] :
         {std::pair("0F0", 0), std::pair("1F0", 1), std::pair("1B0", 1), std::pair("0B0", 0)}) {
      text += "{\"name\": \"" + std::string(name) + "\", \"ph\": \"X\", \"ts\": " + std::to_string(at) +
              ", \"dur\": " + std::to_string(part) + ", \"pid\": 0, \"tid\": " + std::to_string(device) +
              ", \"args\": {\"step\": " + std::to_string(step + 1) + "}},\n";
      at += part;
    }
    begin = at;
  }
  return text;
}

PipelineSchedule Schedule() { return *Generate("1f1b", {.devices = 2, .micro_batches = 1}); }

TEST(PipelineTrace, HasTheMedianOfStepsBehindTheFirst) {
  const auto played = ReadPipelineTrace(TraceOf({4000, 100, 400, 200}), "t.json", Schedule());
  ASSERT_TRUE(played.ok()) << played.status();
  EXPECT_EQ(played->makespan, 200'000);
  EXPECT_EQ(played->steps[1][1].start, 100'000);
  EXPECT_EQ(played->steps[0][1].end, 200'000);
  const std::string svg = PipelineSvg(Schedule(), *Play(Schedule(), UnitTimes(Schedule(), 40'000)), "two", &*played);
  EXPECT_THAT(svg, HasSubstr("two: 0.24 ms predicted, above, 0.20 ms measured, below"));
  EXPECT_THAT(svg, HasSubstr("measured 1"));
}

TEST(PipelineTrace, ADeviceMayHaveNothingToDo) {
  PipelineSchedule idle = Schedule();
  idle.lists[0].clear();
  const auto played = ReadPipelineTrace(TraceOf({100, 100}), "t.json", idle);
  ASSERT_TRUE(played.ok()) << played.status();
  EXPECT_TRUE(played->steps[0].empty());
  std::string none = "[\n";
  for (const char* step : {"1", "2"}) {
    none +=
        "{\"name\": \"x\", \"ts\": 0, \"dur\": 1, \"pid\": 0, \"tid\": 0, \"args\": {\"step\": " + std::string(step) +
        "}},\n";
  }
  EXPECT_THAT(std::string(ReadPipelineTrace(none, "t.json", Schedule()).status().message()), HasSubstr("got x"));
  EXPECT_THAT(std::string(ReadPipelineTrace("{\"ts\": 1e300}", "t.json", idle).status().message()),
              HasSubstr("t.json:1: expected an event with name"));
}

TEST(PipelineTrace, NamesTheLineOrTheOperationThatDoesNotFit) {
  const auto words = [](const std::string& text) {
    return std::string(ReadPipelineTrace(text, "t.json", Schedule()).status().message());
  };
  EXPECT_EQ(words(TraceOf({100})), "t.json: expected 2 steps or more, got fewer");
  EXPECT_THAT(words("[\nhello\n"), HasSubstr("t.json: expected JSON, line 2, column 1: got hello"));
  std::string other = TraceOf({100, 100});
  other.replace(other.rfind("1F0"), 3, "1F1");
  EXPECT_EQ(words(other), "t.json: step 2, device 1: expected 1F0 of the schedule, got 1F1");
  std::string device = TraceOf({100, 100});
  device.replace(device.rfind("\"tid\": 0"), 8, "\"tid\": 7");
  EXPECT_THAT(words(device), HasSubstr("expected one of 2 devices in tid, got {"));
}

}  // namespace
}  // namespace causeway::plan
