// The site for which the others wait, in synchronous mode: a round closes with the last contribution, and where that is
// nearly always the same site's, it sets the pace of all.
#pragma once

#include <optional>

#include "server/status/status_snapshot.h"

namespace causeway::server {

struct Straggler {
  core::SiteId site;
  int last = 0;  // of the rounds looked at, those that it was the last in
  int rounds = 0;
  double share = 0;  // of the time, in which the others' contributions were waiting for it
};

// Pure; the newest rounds of the log count.
std::optional<Straggler> FindStraggler(const StatusSnapshot& snapshot);

}  // namespace causeway::server
