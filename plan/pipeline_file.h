// A pipeline schedule as a file.
//
//   causeway-schedule 1
//   devices 4 micro_batches 8 stages 8 replicas 1
//   width 2 copies                               # ranks of each place: copies | shards; may be left out: 1
//   place 0:0 1:1 2:2 3:3 4:3 5:2 6:1 7:0        # stage:device; of a second copy of the weights r1.0:3
//   split 0:embed+0-2 1:3-4 … 7:14-15+head       # layers of each stage; may be left out
//   device 0: 0F0 0F1 … 7F0 7I0 7W0 (0F5;7B1) …  # plan/pipeline_schedule.h; of a second copy r1.7F0
//
// From # on a line is a comment. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"

namespace causeway::plan {

// The layers of a stage: [first, last], none if last < first; and the ends of the model.
struct StageLayers {
  int first = 0, last = -1;
  bool embedding = false, head = false;

  friend bool operator==(const StageLayers&, const StageLayers&) = default;
};

struct PipelineFile {
  PipelineSchedule schedule;
  int width = 1;                   // ranks of each place, which run one list on rows of their own
  bool shards = false;             // the ranks of a place share a stage's parameters, instead of each having all
  std::vector<StageLayers> split;  // layers of each stage; empty: not given

  friend bool operator==(const PipelineFile&, const PipelineFile&) = default;
};

std::string WritePipelineFile(const PipelineFile& file);

// INVALID_ARGUMENT: "NAME:LINE:COLUMN: expected …, got …". Reads any text; CheckPipeline says whether the schedule is
// valid.
absl::StatusOr<PipelineFile> ParsePipelineFile(std::string_view text, const std::string& name);

// A pipeline schedule in the format of PyTorch's pipeline runtime: torchtitan's pipeline_parallel_schedule_csv.
//
//   a row a rank: 0F0,0F1,1I0,1W0,(0F5;1B1)OVERLAP_F_B        operations that compute alone: PyTorch adds the others
//
// Pure.

// REQUIRES: the schedule is valid. INVALID_ARGUMENT: two copies of the weights, which a PyTorch stage cannot have.
absl::StatusOr<std::string> TorchCsv(const PipelineSchedule& schedule);

}  // namespace causeway::plan
