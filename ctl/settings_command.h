// causewayctl set, and causewayctl settings: the settings of a running run, and of any.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ctl/client.h"

namespace causeway::ctl {

// `arguments`: "set", then KEY=VALUE once or more. Prints from which step, and from which version of each fragment on,
// the new values take effect.
absl::Status RunSetCommand(Client& client, const std::vector<std::string>& arguments);

// Prints each setting: default, when a change holds, and description; for a terminal, or as docs/reference.md.
void PrintSettings(bool markdown);

}  // namespace causeway::ctl
