// Lines of `causewayctl history`, and the words of an event for the report.
#pragma once

#include <string>

#include "causeway/v1/coordinator.pb.h"

namespace causeway::ctl {

// The site that an event concerns, or "fragment 3"; empty: neither.
std::string SubjectText(const v1::HistoryEvent& event);

// "2026-11-21 19:06:52.123  enter  eu  after step 40": time in UTC, kind, site or fragment, words.
std::string HistoryText(const v1::HistoryEvent& event);

// {"id", "unix_ms", "kind", "site", "fragment", "text"}, on one line; a site or fragment that the event has not is
// null. A command has {"name", "role", "address", "command", "arguments", "result"} as "command", too.
std::string HistoryJson(const v1::HistoryEvent& event);

}  // namespace causeway::ctl
