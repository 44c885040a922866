#include "plan/pipeline_planner.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_search.h"
#include "plan/pipeline_svg.h"
#include "plan/pipeline_trace.h"

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;

// A head of nearly five layers' forward, as at 124 M parameters.
PipelineCosts CostsOfLayers(int layers = 12) {
  return {.layers = layers,
          .layer = {.forward = 1000, .input = 1100, .weight = 900},
          .embedding = {.forward = 50, .input = 0, .weight = 60},
          .head = {.forward = 4900, .input = 5000, .weight = 4800},
          .layer_bytes = 1e6,
          .message_bytes = 1e5};
}

TEST(SplitLayers, TheLongestStageIsAsShortAsAnyCutMakesIt) {
  for (const int layers : {4, 7, 12}) {
    const PipelineCosts costs = CostsOfLayers(layers);
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
  EXPECT_THAT(std::string(SplitLayers(CostsOfLayers(3), 4).status().message()),
              HasSubstr("a layer for each of 4 stages, got 3"));
}

TEST(PlanPipeline, TheBestIsValidFitsAndItsP90HoldsOnOtherDraws) {
  const PlannerInput input{
      .devices = 4, .micro_batches = 8, .costs = CostsOfLayers(), .memory_bytes = 20e6, .latency_ns = 200};
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
  PlannerInput input{.devices = 4, .micro_batches = 8, .costs = CostsOfLayers(), .memory_bytes = 1e3};
  EXPECT_THAT(std::string(PlanPipeline(input).status().message()), HasSubstr("GB, got 1e-06 GB"));
  input.costs.layers = 2;
  EXPECT_THAT(std::string(PlanPipeline(input).status().message()), HasSubstr("got 2 layers for 4 devices"));
}

TEST(PlanPipeline, MemoryCountsTheWeightsOfEveryCopy) {
  PlannerInput input{.devices = 4, .micro_batches = 8, .costs = CostsOfLayers()};
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

TEST(PlanPipeline, TriesUnitsOfZeroPpOfWhichMemoryMayTakeTheSmallAlone) {
  PlannerInput input{.devices = 4, .micro_batches = 16, .costs = CostsOfLayers()};
  const auto units = [&] {
    std::map<std::string, double> bytes;
    const std::vector<PlannedPipeline> plans = *PlanPipeline(input);
    for (const PlannedPipeline& plan : plans) {
      if (plan.name.starts_with("zeropp 2")) bytes[plan.name] = plan.peak_bytes;
    }
    return bytes;
  };
  const std::map<std::string, double> all = units();
  ASSERT_THAT(all, ::testing::SizeIs(3)) << "of 4, 8 and 16 micro-batches";
  EXPECT_LT(all.at("zeropp 2"), all.at("zeropp 2 unit 8"));
  input.memory_bytes = all.at("zeropp 2 unit 8");
  EXPECT_EQ(units().contains("zeropp 2 unit 16"), all.at("zeropp 2 unit 16") <= input.memory_bytes);
  EXPECT_TRUE(units().contains("zeropp 2 unit 8"));
}

TEST(PlanPipeline, CopiesPayForTheirGradientsWhereTheLinkIsSlow) {
  PlannerInput input{.devices = 4, .micro_batches = 8, .costs = CostsOfLayers(), .bytes_per_s = 1e12};
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

constexpr int64_t kForward = 1000;  // of 1/D of the model

PipelineTimes Times(int devices, int stages, bool slow_head, int64_t latency) {
  PipelineTimes times;
  const int64_t forward = kForward * devices / stages;
  times.stages.assign(static_cast<size_t>(stages), {.forward = forward, .input = forward, .weight = forward});
  if (slow_head) {
    StageTimes& last = times.stages.back();
    last = {.forward = last.forward + kForward / 2,
            .input = last.input + kForward / 2,
            .weight = last.weight + kForward / 2};
  }
  times.message_ns = latency;
  return times;
}

TEST(PipelineSearch, EveryScheduleIsValidWithinItsCapAndTheSameEachTime) {
  for (const int devices : {1, 2, 4}) {
    for (const int n : {devices, 2 * devices, 4 * devices}) {
      for (const bool v_shape : {false, true}) {
        for (const int cap : {0, 2, devices, 2 * devices}) {
          if (cap == 1 && v_shape) continue;
          const PipelineTimes times = Times(devices, v_shape ? 2 * devices : devices, true, 250);
          const auto schedule = GreedySchedule({devices, n, v_shape, cap}, times);
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          EXPECT_EQ(CheckPipeline(*schedule, {.cap = cap}), absl::OkStatus()) << devices << " " << n << " " << cap;
          EXPECT_EQ(*GreedySchedule({devices, n, v_shape, cap}, times), *schedule);
        }
      }
    }
  }
  EXPECT_FALSE(GreedySchedule({4, 4, true, 1}, Times(4, 8, false, 0)).ok());
}

struct Found {
  int64_t makespan = std::numeric_limits<int64_t>::max();
  std::string name = "none";
  PipelineSchedule schedule;
  PipelineTimes times;

  bool ok() const { return name != "none"; }
  void Offer(const std::string& other, const PipelineSchedule& made, const PipelineTimes& made_times) {
    const auto played = Play(made, made_times);
    ASSERT_TRUE(played.ok()) << other << ": " << played.status();
    if (played->makespan < makespan) *this = {played->makespan, other, made, made_times};
  }
};

struct Cell {
  int devices = 0, micro_batches = 0;
  int64_t latency = 0;
  bool slow_head = false;
  double cap = 0;  // of 1F1B's, in live micro-batches of 1/D of the model

  int CapOf(int stages) const {
    const double whole = cap * std::min(devices, micro_batches);
    return static_cast<int>(whole * stages / devices);
  }
};

Found BestGenerator(const Cell& cell, const std::string& of = "") {
  Found best;
  for (const std::string& name : GeneratorNames()) {
    if (!of.empty() && name != of) continue;
    const auto schedule = Generate(name, {.devices = cell.devices, .micro_batches = cell.micro_batches});
    if (!schedule.ok() || schedule->copies > 1 || name == "zeropp") continue;  // one copy of the weights, all there
    if (!CheckPipeline(*schedule, {.cap = cell.CapOf(schedule->stages)}).ok()) continue;
    best.Offer(name, *schedule, Times(cell.devices, schedule->stages, cell.slow_head, cell.latency));
  }
  return best;
}

Found BestSearched(const Cell& cell, const Found& generator) {
  Found best;
  for (const bool v_shape : {false, true}) {
    const int stages = v_shape ? 2 * cell.devices : cell.devices, cap = cell.CapOf(stages);
    const PipelineTimes times = Times(cell.devices, stages, cell.slow_head, cell.latency);
    for (const int64_t patience : {0, 125, 250, 500, 1000}) {
      for (const bool forward_first : {false, true}) {
        const auto schedule =
            GreedySchedule({cell.devices, cell.micro_batches, v_shape, cap, patience, forward_first}, times);
        if (!schedule.ok()) continue;
        EXPECT_EQ(CheckPipeline(*schedule, {.cap = cap}), absl::OkStatus());
        best.Offer(absl::StrCat(v_shape ? "V" : "line", " ", patience, forward_first ? " F" : ""), *schedule, times);
      }
    }
  }
  if (!generator.ok()) return best;
  best.Offer(absl::StrCat(generator.name, " improved"),
             Improved(generator.schedule, generator.times, cell.CapOf(generator.schedule.stages)), generator.times);
  return best;
}

TEST(PipelineSearch, SearchedIsNeverLongerThanTheBestGeneratorAndShorterWhereLatencyCapOrHeadMatter) {
  int shorter_with_latency = 0, shorter_at_cap = 0, shorter_with_head = 0;
  for (const int devices : {2, 4}) {
    for (const int n : {devices, 2 * devices, 4 * devices}) {
      for (const int64_t latency : {0, 250}) {
        for (const bool slow_head : {false, true}) {
          for (const double cap : {0.5, 1.0, 2.0}) {
            const Cell cell{devices, n, latency, slow_head, cap};
            const Found generator = BestGenerator(cell), searched = BestSearched(cell, generator);
            std::printf("D %d N %2d latency %3ld head %s cap %.1f: %-12s %6ld, searched %-16s %6ld\n", devices, n,
                        static_cast<long>(latency), slow_head ? "slow" : "even", cap, generator.name.c_str(),
                        generator.ok() ? static_cast<long>(generator.makespan) : 0, searched.name.c_str(),
                        static_cast<long>(searched.makespan));
            ASSERT_TRUE(searched.ok());
            EXPECT_EQ(generator.ok(), cap >= 1);  // below 1F1B's cap none of them fits
            if (!generator.ok()) {
              const Found whole = BestGenerator({devices, n, latency, slow_head, 1000}, "1f1b");
              std::printf("  searched ÷ 1F1B without the cap: %.3f\n",
                          static_cast<double>(searched.makespan) / static_cast<double>(whole.makespan));
              continue;
            }
            EXPECT_LE(searched.makespan, generator.makespan);
            if (searched.makespan == generator.makespan) continue;
            shorter_with_latency += latency > 0;
            shorter_at_cap += cap == 1;
            shorter_with_head += slow_head;
          }
        }
      }
    }
  }
  EXPECT_GT(shorter_with_latency, 0);
  EXPECT_GT(shorter_at_cap, 0);
  EXPECT_GT(shorter_with_head, 0);
}

}  // namespace
}  // namespace causeway::plan
