// Searched pipeline schedules, for any costs, latency and cap: greedy ones, and others improved step by step.
//
//   a device that is free takes   I before F before W, of stages that are deeper before others
//                                 F only if its live micro-batches, with this one and one for each deeper stage of the
//                                 device, are within the cap, so that none is ever stuck
//
// Stages lie in a line or, two on each device, in a V. Pure; the same input gives the same schedule.
#pragma once

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {

struct SearchInput {
  int devices = 0;
  int micro_batches = 0;
  bool v_shape = false;        // two stages on each device; else one
  int cap = 0;                 // the most (stage, micro-batch)s live on a device; 0: any
  int64_t patience = 0;        // ns: a W begins only where nothing else can begin within this time
  bool forward_first = false;  // F before I, where both may begin at once
};

// Swaps neighbors in a device's list as long as the step becomes shorter, within the cap, for at most some seconds: the
// step never becomes longer. The schedule is valid, and stays so.
PipelineSchedule Improved(PipelineSchedule schedule, const PipelineTimes& times, int cap);

// INVALID_ARGUMENT: a cap below one for each stage of a device.
absl::StatusOr<PipelineSchedule> GreedySchedule(const SearchInput& input, const PipelineTimes& times);

}  // namespace causeway::plan
