// causewayctl plan and its flags: run.yaml and flags in, text or JSON out. The coordinator is contacted only for an
// external model, whose tensors it has from the first site.
//
//   --config --link_mbit --rtt_ms --step_ms --sites …     plan/round_plan.h            what a run will do to its links
//   --sweep                                               plan/round_plan.h            the same over H, codecs and τ
//
// Called from one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "plan/round_plan.h"

namespace causeway::ctl {

// A plan for people and for scripts. Sizes are decimal: MB is 10⁶ bytes, Mbit 10⁶ bits.

std::string RoundText(const plan::RoundPlan& plan);
std::string RoundJson(const plan::RoundPlan& plan);  // one line; what is unlimited or out of reach is null

std::string SweepText(const std::vector<plan::SweepRow>& rows, const plan::RoundSetting& setting);
std::string SweepJson(const std::vector<plan::SweepRow>& rows);  // a line for each row

// Prints to stdout. `external_model` returns the manifest of the run with this id. INVALID_ARGUMENT names the flag, the
// expected and the actual value; for files as formats::ReadRunYaml.
absl::Status RunRoundCommand(bool json,
                             const std::function<absl::StatusOr<core::Manifest>(const core::RunId&)>& external_model);

}  // namespace causeway::ctl
