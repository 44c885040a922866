// Measures the costs of a Llama's parts on this machine, for causewayctl plan pipeline --costs.
//
//   one micro-batch through a block, the embedding and the head ─► forward, input gradient, weight gradient ─► JSON
//
// Each time is the best of several passes, since other load on the machine only makes them slower.
//
// On the CPU, in float32. Blocks its caller for some seconds. Throws std::bad_alloc where memory is short.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/run_config.h"

namespace causeway::worker {

// The speeds of this machine that matter to a step, measured in about a second: a worker that traces its work records
// them beside the amounts (plan/what_if.h).
//
// Takes the best of several passes: other load on the machine only makes them slower. Blocks its caller.
struct MachineSpeeds {
  double flops = 0;  // FLOP a second of a float32 matrix product on BLAS's threads
  // Bytes a second that one thread reads out of arrays of 256 KiB, 8 MiB and 256 MiB.
  double l2 = 0, l3 = 0, dram = 0;
};

MachineSpeeds MeasureMachine();

// The object of plan/pipeline_costs.h. INVALID_ARGUMENT: a run with another kind of model.
absl::StatusOr<std::string> ProfileStages(const core::RunConfig& config, int passes = 25);
absl::StatusOr<std::string> ProfileRunYaml(const std::string& path);  // also returns the file's errors

}  // namespace causeway::worker
