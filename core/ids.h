// Names of the things that take part in a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/schedule.h"

namespace causeway::core {

using SiteId = std::string;     // one datacenter; unique in a run, 1 to 64 of [A-Za-z0-9._-]
using RunId = std::string;      // one training run
using SessionId = std::string;  // a worker's identity, kept over reconnects and restarts from its checkpoint

// A contribution is merged at most once under this key (docs/architecture.md). No epoch in it: an upload that a
// restart of the coordinator interrupted goes on under the same key.
struct ContributionKey {
  RunId run;
  SiteId site;
  FragmentId fragment = 0;
  Version base_version = 0;

  friend auto operator<=>(const ContributionKey&, const ContributionKey&) = default;
};

// True for a name that may stand in a file name, a metric label and a log line as it is.
bool IsValidName(const std::string& name);

}  // namespace causeway::core
