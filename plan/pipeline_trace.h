// Reads a pipeline's steps from the trace of causeway-worker --trace: when each operation ran.
//
//   [{"name": "0F1", "ts": 12.5, "dur": 3.0, "pid": 0, "tid": 0, "args": {"step": 1}},     µs; tid: the device
//    …                                                                                     a list that need not end
//
// Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {

// The median over all steps but the first of each start and end, with the step's begin as 0, and of the makespan; first
// ranks of places alone. INVALID_ARGUMENT names the line: not a trace, or one of another schedule.
absl::StatusOr<PlayedPipeline> ReadPipelineTrace(const std::string& text, const std::string& name,
                                                 const PipelineSchedule& schedule);

}  // namespace causeway::plan
