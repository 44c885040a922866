// Every generator's lists and times against those of an independent program (tests/golden/pipeline_schedules.json), and
// the formulas of the papers.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {
namespace {

using nlohmann::json;

constexpr int64_t kUnit = 5040;  // nanoseconds of the forward of 1/D of the model: divisible by every number of chunks

// "F0@3/1", as the file has it.
std::string GoldenText(const Operation& operation) {
  return absl::StrCat(std::string(1, kOperationLetters[static_cast<int>(operation.kind)]), operation.micro_batch, "@",
                      operation.stage, "/", operation.copy);
}

std::vector<std::vector<std::string>> GoldenOrder(const PipelineSchedule& schedule) {
  std::vector<std::vector<std::string>> order;
  for (const auto& list : schedule.lists) {
    order.emplace_back();
    for (const ScheduleStep& step : list) {
      if (!IsCompute(step.first.kind)) continue;
      order.back().push_back(GoldenText(step.first) + (step.second ? "+" + GoldenText(*step.second) : ""));
    }
  }
  return order;
}

// "33/2" units.
int64_t Nanoseconds(const std::string& fraction) {
  const size_t slash = fraction.find('/');
  const int64_t over = std::stoll(fraction);
  return slash == std::string::npos ? over * kUnit : over * kUnit / std::stoll(fraction.substr(slash + 1));
}

struct Made {
  PipelineSchedule schedule;
  PlayedPipeline played;
};

Made Make(const std::string& name, const GeneratorInput& input) {
  auto schedule = Generate(name, input);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  auto played = Play(*schedule, UnitTimes(*schedule, kUnit * input.devices / schedule->stages));
  EXPECT_TRUE(played.ok()) << name << ": " << played.status();
  return {*std::move(schedule), *std::move(played)};
}

TEST(PipelineGolden, EachScheduleHasItsOrderTimesAndPeaks) {
  std::ifstream file(GOLDEN_SCHEDULES);
  const json golden = json::parse(file);
  ASSERT_EQ(golden["cases"].size(), 12u);
  for (const json& one : golden["cases"]) {
    std::string name = one["schedule"];
    GeneratorInput input{.devices = one["D"], .micro_batches = one["N"]};
    if (name.starts_with("interleaved_v")) {
      input.chunks = std::stoi(name.substr(name.size() - 1));
      name = "interleaved";
    }
    const Made made = Make(name, input);
    SCOPED_TRACE(absl::StrCat(name, " D ", input.devices, " N ", input.micro_batches));
    EXPECT_EQ(json(GoldenOrder(made.schedule)), one["order"]);
    EXPECT_EQ(made.played.makespan, Nanoseconds(one["makespan"]));
    EXPECT_EQ(json(made.played.peak_chunks), one["peak_chunks"]);
    for (int d = 0; d < input.devices; ++d) {
      EXPECT_EQ(made.played.bubble(d), Nanoseconds(one["bubble"][d])) << d;
      EXPECT_EQ(made.played.span_bubble(d), Nanoseconds(one["span_bubble"][d])) << d;
    }
  }
}

// bubble ÷ makespan = over ÷ under, of every device.
void ExpectBubble(const Made& made, int64_t over, int64_t under) {
  for (int d = 0; d < made.schedule.devices; ++d) {
    EXPECT_EQ(made.played.bubble(d) * under, made.played.makespan * over) << "device " << d;
  }
}

TEST(PipelineFormulas, BubblesArePublishedOnes) {
  for (const int d : {2, 4, 8}) {
    for (const int n : {d, 2 * d, 4 * d}) {
      SCOPED_TRACE(absl::StrCat("D ", d, " N ", n));
      const GeneratorInput input{.devices = d, .micro_batches = n};
      ExpectBubble(Make("gpipe", input), d - 1, n + d - 1);
      ExpectBubble(Make("1f1b", input), d - 1, n + d - 1);
      for (const int v : {2, 3, 4}) {
        ExpectBubble(Make("interleaved", {.devices = d, .micro_batches = n, .chunks = v}), d - 1, v * n + d - 1);
      }
      if (n == d) ExpectBubble(Make("bitpipe", input), d - 2, 3 * n + d - 2);
      if (n >= 2 * d - 1) ExpectBubble(Make("zb_v", input), d - 1, 6 * n + d - 1);
      if (n >= 2 * d) ExpectBubble(Make("dualpipe", input), d - 2, 3 * n + d - 2);
    }
  }
}

TEST(PipelineFormulas, PeaksAndMessagesArePublishedOnes) {
  for (const int d : {2, 4, 8}) {
    for (const int n : {d, 2 * d, 4 * d}) {
      SCOPED_TRACE(absl::StrCat("D ", d, " N ", n));
      const GeneratorInput input{.devices = d, .micro_batches = n};
      for (int device = 0; device < d; ++device) {
        EXPECT_EQ(Make("gpipe", input).played.peak_chunks[device], n);
        EXPECT_EQ(Make("1f1b", input).played.peak_chunks[device], std::min(n, d - device));
        EXPECT_EQ(Make("interleaved", input).played.peak_chunks[device], std::min(2 * n, 2 * (d - device - 1) + d + 1));
        if (n < 2 * d) continue;
        EXPECT_EQ(Make("zb_v", input).played.peak_chunks[device], 2 * d);
        EXPECT_EQ(Make("dualpipe", input).played.peak_chunks[device], d + 1);
      }
      EXPECT_EQ(Make("1f1b", input).played.messages, 2 * n * (d - 1));
      EXPECT_EQ(Make("interleaved", input).played.messages, 2 * n * (2 * d - 1));
    }
  }
}

TEST(PipelineFormulas, ZeroPpGathersThreeTimesAUnitAndChunk) {
  for (const int d : {2, 4}) {
    const int n = 4 * d, unit = 2 * d, v = 2;
    const Made made = Make("zeropp", {.devices = d, .micro_batches = n, .chunks = v, .unit = unit});
    for (const auto& list : made.schedule.lists) {
      int gathers = 0, scatters = 0;
      bool weights = false;
      for (const ScheduleStep& step : list) {
        gathers += step.first.kind == OperationKind::kGather;
        scatters += step.first.kind == OperationKind::kRelease && weights;
        weights = step.first.kind == OperationKind::kWeight;
      }
      EXPECT_EQ(gathers + scatters, 3 * v * n / unit);
    }
  }
}

TEST(PipelineTime, APairTakesItsOwnTimeAndOfTwoStagesSavesTheLesser) {
  const PipelineSchedule schedule{
      .devices = 1,
      .micro_batches = 2,
      .stages = 2,
      .place = {{0, 0}},
      .lists = {{{{.stage = 0}, {}},
                 {{.stage = 1}, {}},
                 {{.stage = 0, .micro_batch = 1}, Operation{OperationKind::kBackward, 0, 1}},
                 {{.stage = 1, .micro_batch = 1}, Operation{OperationKind::kBackward, 0, 0}},
                 {{OperationKind::kBackward, 0, 1, 1}, {}},
                 {{OperationKind::kBackward, 0, 0, 1}, {}}}}};
  PipelineTimes times{.stages = {{.forward = 10, .input = 10, .weight = 10, .pair = 25},
                                 {.forward = 30, .input = 30, .weight = 30, .pair = 70}}};
  const auto played = Play(schedule, times);
  ASSERT_TRUE(played.ok()) << played.status();
  EXPECT_EQ(played->makespan, 2 * (30 + 90) - 2 * 5);  // 5 of the pairs of stage 0, 20 of those of stage 1
}

// Both come to it at 9; each sends 1,000 bytes at a byte a nanosecond, there and back with a latency of 5 each.
TEST(PipelineTime, AnAllReduceBetweenCopiesRunsBesideAndEndsTheStep) {
  const Operation reduce{OperationKind::kReduce, 0, 0, 0}, other{OperationKind::kReduce, 1, 0, 0};
  const auto list = [](int copy, const Operation& last) {
    return std::vector<ScheduleStep>{{{.copy = copy}, {}}, {{OperationKind::kBackward, copy}, {}}, {last, {}}};
  };
  const PipelineSchedule schedule{.devices = 2,
                                  .micro_batches = 2,
                                  .stages = 1,
                                  .copies = 2,
                                  .place = {{0}, {1}},
                                  .lists = {list(0, reduce), list(1, other)}};
  PipelineTimes times{.stages = {{.forward = 3, .backward = 6}}, .message_ns = 5, .bytes_per_s = 1e9};
  EXPECT_EQ(Play(schedule, times)->makespan, 9);
  times.reduce_bytes = {1000};
  EXPECT_EQ(Play(schedule, times)->makespan, 9 + 1000 + 2 * 5);
}

TEST(PipelineGenerators, NumbersForWhichARuleDoesNotHoldAreRefusedWithThem) {
  const auto words = [](const std::string& name, int devices, int micro_batches) {
    return std::string(Generate(name, {.devices = devices, .micro_batches = micro_batches}).status().message());
  };
  EXPECT_EQ(words("zb_v", 4, 6), "zb_v: expected at least 2 D − 1 micro-batches, got 4 devices and 6 micro-batches");
  EXPECT_THAT(words("dualpipe", 3, 8), ::testing::HasSubstr("got 3 devices and 8 micro-batches"));
  EXPECT_THAT(words("bitpipe", 4, 6), ::testing::HasSubstr("a multiple of it micro-batches"));
  EXPECT_THAT(words("2f2b", 4, 4), ::testing::HasSubstr("schedule: expected gpipe | 1f1b |"));
}

}  // namespace
}  // namespace causeway::plan
