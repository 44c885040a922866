// causewayctl report: a run's status and history as one HTML file.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "ctl/client.h"

namespace causeway::ctl {

// `shards` are the run's coordinators in their order, of which the first has the status; `coordinator` has their
// addresses. INVALID_ARGUMENT: `out` is empty or cannot be written, or a file of --sample cannot be read.
absl::Status RunReportCommand(std::span<Client> shards, const std::string& out, const std::string& coordinator);

}  // namespace causeway::ctl
