// core::RunConfig to and from the message that run.yaml is read into.
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

}  // namespace causeway::formats
