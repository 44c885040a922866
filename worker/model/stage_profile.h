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

// The object of plan/pipeline_costs.h. INVALID_ARGUMENT: a run with another kind of model.
absl::StatusOr<std::string> ProfileStages(const core::RunConfig& config, int passes = 25);
absl::StatusOr<std::string> ProfileRunYaml(const std::string& path);  // and its errors

}  // namespace causeway::worker
