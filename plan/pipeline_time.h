// Simulates a pipeline schedule in integer nanoseconds.
//
// A device runs its list in order. An operation starts when the device is free and its inputs have arrived: F(s) needs
// F(s − 1); B and I(s) need F(s) and B or I(s + 1) of the same micro-batch and copy; W needs its I. Between two devices
// a message takes latency + bytes ÷ bandwidth, one at a time for each link and direction, in the sender's order. A runs
// in parallel with a device's other work, from when both holders of a stage have come to it, one at a time for each two
// devices; the step ends after the last. G and R take no time here. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"

namespace causeway::plan {

// The times of one micro-batch in one stage, in nanoseconds.
struct StageTimes {
  int64_t forward = 0, input = 0, weight = 0;
  int64_t backward = 0;  // the whole backward; 0: input + weight
  int64_t pair = 0;      // a forward and a whole backward that overlap; 0: their sum. Two stages save the lesser saving
};

struct PipelineTimes {
  std::vector<StageTimes> stages;
  int64_t message_ns = 0;            // latency
  double bytes = 0;                  // size of an activation or its gradient
  double bytes_per_s = 0;            // 0: no bound
  std::vector<double> reduce_bytes;  // size of each stage's gradients, for A between two copies; empty: A takes no time
  double jitter = 0;                 // each operation takes 1 ± this, drawn by the seed
  uint64_t seed = 0;
};

// In every stage a forward takes `forward` and a backward twice that; messages take no time.
PipelineTimes UnitTimes(const PipelineSchedule& schedule, int64_t forward);

struct PlayedStep {
  int64_t start = 0, end = 0;
};

struct PlayedPipeline {
  int64_t makespan = 0;
  std::vector<int64_t> busy;     // busy time by device
  std::vector<int64_t> span;     // by device: from its first start to its last end
  std::vector<int> peak_chunks;  // by device: most (stage, micro-batch)s whose F has run and B or W has not
  std::vector<std::vector<PlayedStep>> steps;  // in the order of the schedule's lists
  int64_t messages = 0;

  int64_t bubble(int device) const { return makespan - busy[static_cast<size_t>(device)]; }
  int64_t span_bubble(int device) const {
    return span[static_cast<size_t>(device)] - busy[static_cast<size_t>(device)];
  }
};

// INVALID_ARGUMENT: devices wait for each other, or for an operation that never comes: "device 0, position 3, 0I0:
// waits for 1I0; device 1, position 2, …: waits for …", once around.
absl::StatusOr<PlayedPipeline> Play(const PipelineSchedule& schedule, const PipelineTimes& times);

}  // namespace causeway::plan
