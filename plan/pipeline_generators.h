// Generators of pipeline schedules by their published rules. Pure.
//
//   gpipe             all forwards, then all backwards (arXiv 1811.06965)
//   1f1b              a backward as soon as there is one (arXiv 2006.09503)
//   interleaved       several chunks a device (arXiv 2104.04473), Megatron-LM's order
//   breadth_first     several chunks a device, all micro-batches through one before the next (arXiv 2211.05953)
//   zb_h1             1f1b with weight gradients later (arXiv 2401.10241); the rule is our own, for F = I = W
//   zb_v              two chunks a device, in a V (arXiv 2405.15362), PyTorch's order
//   chimera           two directions (arXiv 2107.06925)
//   dualpipe          two directions, with overlapping pairs (deepseek-ai/DualPipe)
//   bitpipe           two directions of two chunks each (arXiv 2410.19367, wuhouming/BitPipe)
//   bitpipe_looped    the same without the V, the paper's ablation: a device's two stages are D apart
//   zeropp            interleaved over units, whose parameters are gathered (arXiv 2402.03791); our reading
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"

namespace causeway::plan {

struct GeneratorInput {
  int devices = 0;
  int micro_batches = 0;
  int chunks = 2;          // chunks of a device, for interleaved, breadth_first and zeropp
  int unit = 0;            // micro-batches of a unit, for zeropp; 0: as many as devices
  bool late_sync = false;  // A comes at the end, where a schedule has two copies
};

// All names, in the order above.
const std::vector<std::string>& GeneratorNames();
bool HasChunks(const std::string& name);  // its rule is for any number of them

// INVALID_ARGUMENT: no such name, or numbers for which the rule does not hold.
absl::StatusOr<PipelineSchedule> Generate(const std::string& name, const GeneratorInput& input);

}  // namespace causeway::plan
