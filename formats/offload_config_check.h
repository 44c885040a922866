// Parses `offload.k` and `offload.resident_share`, in run.yaml and in flags of a worker.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/run_config.h"

namespace causeway::formats {

// INVALID_ARGUMENT: "expected …, got …".
absl::Status ReadInterleave(const std::string& text, core::OffloadConfig* offload);
absl::Status ReadShare(const std::string& text, core::OffloadConfig* offload);

}  // namespace causeway::formats
