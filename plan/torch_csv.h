// A pipeline schedule in the format of PyTorch's pipeline runtime: torchtitan's pipeline_parallel_schedule_csv.
//
//   a row a rank: 0F0,0F1,1I0,1W0,(0F5;1B1)OVERLAP_F_B        operations that compute alone: PyTorch adds the others
//
// Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"

namespace causeway::plan {

// The schedule is valid. INVALID_ARGUMENT: two copies of the weights, which a PyTorch stage cannot have.
absl::StatusOr<std::string> TorchCsv(const PipelineSchedule& schedule);

}  // namespace causeway::plan
