// causewayctl plan and its flags. Nothing is contacted: run.yaml and flags in, text or JSON out.
//
//   --config --link_mbit --rtt_ms --step_ms --sites …     ctl/plan.h            what a run will do to its links
//   --sweep                                               ctl/plan.h            the same over H, codecs and τ
//   --table4, --utilization_model=paper …                 ctl/utilization_model.h
//
// Called from one thread.
#pragma once

#include "absl/status/status.h"

namespace causeway::ctl {

// Prints to stdout. INVALID_ARGUMENT names the flag, what was expected and what came; for files as
// formats::ReadRunYaml.
absl::Status RunPlanCommand(bool json);

}  // namespace causeway::ctl
