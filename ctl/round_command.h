// causewayctl plan and its flags: run.yaml and flags in, text or JSON out. The coordinator is contacted only for an
// external model, whose tensors it has from the first site.
//
//   --config --link_mbit --rtt_ms --step_ms --sites …     plan/round_plan.h            what a run will do to its links
//   --sweep                                               plan/round_plan.h            the same over H, codecs and τ
//   --table4, --utilization_model=paper …                 plan/utilization_model.h
//
// Called from one thread.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/manifest.h"

namespace causeway::ctl {

// Prints to stdout. `external_model` returns the manifest of the run with this id. INVALID_ARGUMENT names the flag, the
// expected and the actual value; for files as formats::ReadRunYaml.
absl::Status RunRoundCommand(bool json,
                             const std::function<absl::StatusOr<core::Manifest>(const core::RunId&)>& external_model);

}  // namespace causeway::ctl
