#include "plan/pipeline_search.h"

#include <gtest/gtest.h>

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
          const auto schedule = SearchSchedule({devices, n, v_shape, cap}, times);
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          EXPECT_EQ(CheckPipeline(*schedule, {.cap = cap}), absl::OkStatus()) << devices << " " << n << " " << cap;
          EXPECT_EQ(*SearchSchedule({devices, n, v_shape, cap}, times), *schedule);
        }
      }
    }
  }
  EXPECT_FALSE(SearchSchedule({4, 4, true, 1}, Times(4, 8, false, 0)).ok());
}

}  // namespace
}  // namespace causeway::plan
