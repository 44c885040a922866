// Whether a pipeline schedule is valid: a pure function.
//
//   V1  every F once, and B, or I and W, once, for each copy, stage and micro-batch
//   V2  on the device of its stage                        V3  there in the order F, I, W
//   V4  no device waits for what never comes              V5  W (or B) of a stage in the order of micro-batches
//   V6  live micro-batches of a device at most `cap`      V7  receive buffers for each sender at most `slots`
//   V8  a stage that is gathered is used between G and R  V10 A once for each copy and stage, after its last W or B
//
// V9, PyTorch's own rules, is checked on export (plan/pipeline_file.h). Receive buffers are taken in the sender's order
// and freed in the receiver's: a message that is needed early holds all that were sent before it.
#pragma once

#include "absl/status/status.h"
#include "plan/pipeline_schedule.h"

namespace causeway::plan {

struct PipelineLimits {
  int cap = 0;    // the most (stage, micro-batch)s of a device whose F has run and whose B or W has not; 0: any
  int slots = 0;  // the most receive buffers of a device for each sender; 0: any
};

// The most receive buffers that a valid schedule needs for one sender.
int ReceiveSlots(const PipelineSchedule& schedule);

// INVALID_ARGUMENT: the rule, the device, the position in its list (from 0) and the operation: "V2: device 1, position
// 3, 0F1: expected on device 0, where stage 0 is".
absl::Status CheckPipeline(const PipelineSchedule& schedule, const PipelineLimits& limits = {});

}  // namespace causeway::plan
