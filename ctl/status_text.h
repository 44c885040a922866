// The status as a table for people.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace causeway::ctl {

// From the JSON of GET /status. INVALID_ARGUMENT if it is not that.
absl::StatusOr<std::string> StatusText(const std::string& json);

}  // namespace causeway::ctl
