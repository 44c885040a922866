// core::RunConfig ⇄ the protobuf message of the same name: the one place that knows what every key accepts.
//
//   run.yaml ──ReadYamlMessage──┐
//                               ├──► v1::RunConfig ──RunConfigFromMessage──► core::RunConfig, sound everywhere after
//   Welcome, bytes ─────────────┘         ▲                                          │
//                                         └──────────────RunConfigToMessage──────────┘
//
// An accepted config is obeyed in every key: a key that would be ignored is refused.
#pragma once

#include "absl/status/statusor.h"
#include "causeway/v1/run_config.pb.h"
#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

// Absent keys take core::RunConfig's defaults. INVALID_ARGUMENT for all mistakes that `check` had before and all values
// that are not accepted, with their lines.
absl::StatusOr<core::RunConfig> RunConfigFromMessage(const v1::RunConfig& given, FieldCheck& check);

// Writes every key of the run, also those at their defaults.
v1::RunConfig RunConfigToMessage(const core::RunConfig& config);

// The rules of a Llama model, for run.yaml ("model.") and config.json ("").
void CheckLlama(const core::LlamaConfig& llama, const std::string& prefix, FieldCheck& check);

}  // namespace causeway::formats
