// Lines of `causewayctl history`.
#pragma once

#include <string>

#include "causeway/v1/coordinator.pb.h"

namespace causeway::ctl {

// "2026-11-21 19:06:52.123  enter  eu  after step 40": time in UTC, kind, site or fragment, words.
std::string HistoryText(const v1::HistoryEvent& event);

// {"id", "unix_ms", "kind", "site", "fragment", "text"}, on one line; a site or fragment that the event has not is
// null. A command has {"name", "role", "address", "command", "arguments", "result"} as "command", too.
std::string HistoryJson(const v1::HistoryEvent& event);

}  // namespace causeway::ctl
