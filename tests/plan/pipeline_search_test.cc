#include "plan/pipeline_search.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_generators.h"

namespace causeway::plan {
namespace {

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
