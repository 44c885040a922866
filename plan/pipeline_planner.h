// Plans the schedule for measured costs: among every generator's and searched ones, the one with the lowest p90 wins.
//
//   costs of a layer, the embedding and the head ─► layers of each stage ─► candidates within the memory ─► each played
//   with 200 draws of ±10 % on every operation ─► the least 90th percentile
//
// A stage has neighboring layers; the split makes the longest stage shortest (all of F, I and W), then single layers
// change over while the step becomes shorter. The best so far is entered once more with neighbors in its lists swapped,
// if that helps ("zb_v +"). Pure; the same input gives the same answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_costs.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {

struct PlannerInput {
  int devices = 0;
  int micro_batches = 0;
  PipelineCosts costs;
  double memory_bytes = 0;  // limit for a device; 0: none
  int64_t latency_ns = 0;
  double bytes_per_s = 0;  // 0: no bound
};

struct PlannedPipeline {
  std::string name;  // "zb_v", "interleaved 3", "searched V"
  PipelineFile file;
  PipelineTimes times;
  int64_t makespan = 0, p90 = 0;
  double worst_bubble = 0;  // share of the makespan in which the device that waits most does so
  double peak_bytes = 0;    // on the device that holds most: parameters of all copies, and what layers keep
  int64_t messages = 0;
};

// The times of stages with this split.
PipelineTimes PlannedTimes(const PlannerInput& input, const std::vector<StageLayers>& split);

// The candidates that fit, the best first. INVALID_ARGUMENT: no candidate fits; says how much the smallest needs.
absl::StatusOr<std::vector<PlannedPipeline>> PlanPipeline(const PlannerInput& input);

// The 90th percentile of the makespan over draws of ±10 % on each operation, from `first_seed` on.
int64_t MakespanP90(const PipelineSchedule& schedule, const PipelineTimes& times, uint64_t first_seed, int draws = 200);

}  // namespace causeway::plan
