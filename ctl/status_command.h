// causewayctl status: once, again every second, as JSON, or as one line for a monitor.
#pragma once

#include "absl/status/status.h"
#include "ctl/client.h"

namespace causeway::ctl {

// With --watch it goes on while the coordinator does not answer, and says since when.
absl::Status RunStatusCommand(Client& client, bool json);

bool WatchesStatus();  // until Ctrl-C
bool ChecksStatus();   // --check: the program ends with CheckStatus's exit status

inline constexpr int kUnknown = 3;  // the coordinator did not answer
int CheckStatus(Client& client);

}  // namespace causeway::ctl
