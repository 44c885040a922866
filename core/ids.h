// The identifiers of a run: names and numbers.
#pragma once

#include <cstdint>
#include <string>

namespace causeway::core {

using SiteId = std::string;     // one datacenter; unique in a run, 1 to 64 of [A-Za-z0-9._-]
using RunId = std::string;      // one training run
using SessionId = std::string;  // a worker's identity, kept over reconnects and restarts from its checkpoint

using FragmentId = int32_t;  // 0 … P−1
using Version = int64_t;     // version v of a fragment: how many rounds made it; 0 is the initial parameters
using Step = int64_t;        // inner steps, counted from 1; 0 is "before the first"

// True for a name that can be used unchanged in a file name, a metric label and a log line.
bool IsValidName(const std::string& name);

}  // namespace causeway::core
