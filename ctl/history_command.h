// causewayctl history: what happened, from the coordinator's journal.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ctl/client.h"

namespace causeway::ctl {

// Events of `site` (empty: all), of --kind and since --since, oldest first; with --follow new ones as they come, until
// Ctrl-C, also after a restart of the coordinator.
absl::Status RunHistoryCommand(Client& client, const std::string& site, bool json);
bool FollowsHistory();

}  // namespace causeway::ctl
