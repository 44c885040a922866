// causewayctl report: a run's status and history as one HTML file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ctl/client.h"

namespace causeway::ctl {

// INVALID_ARGUMENT: `out` is empty or cannot be written, or a file of --sample cannot be read.
absl::Status RunReportCommand(Client& client, const std::string& out, const std::string& coordinator);

}  // namespace causeway::ctl
