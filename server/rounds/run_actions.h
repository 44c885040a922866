// The actions that the rules of a run request of their owner, in order.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/ids.h"
#include "core/membership.h"

namespace causeway::server {

// Request the initial parameters from this site.
struct RequestSeed {
  core::SiteId site;
};
// Notify this site of its place in the schedule.
struct Enter {
  core::SiteId site;
  core::Entry entry;
};
// Merge these contributions: the decision is made, and `base` + 1 is the fragment's version from now on.
struct CloseRound {
  struct Contributor {
    core::SiteId site;
    core::Version base = 0;  // its contribution's base, up to max_staleness behind the round's
    double weight = 0;       // not normalised, above 0
    float factor = 1;        // its values are scaled by this
  };
  core::FragmentId fragment = 0;
  core::Version base = 0;
  std::vector<Contributor> contributors;  // in bytewise order of site
  std::vector<core::SiteId> sites;        // the sites that share the data from here on
  std::string reason;                     // "all 3 active sites have contributed", …
  int64_t run_tokens = 0;                 // merged into the fragment so far, with these contributions
  // If set, nothing is merged, and the round restores the parameters of that version.
  std::optional<core::Version> rolled_back_to;
};
// Discard this site's incomplete uploads; its name is free.
struct Dropped {
  core::SiteId site;
  core::Ended ended = core::Ended::kDropped;
  std::string reason;
};
// The site's name and record are given up: the run has reached its limit of sites, and this one has been gone for
// longest.
struct Forgotten {
  core::SiteId site;
};
using Action = std::variant<RequestSeed, Enter, CloseRound, Dropped, Forgotten>;
using Actions = std::vector<Action>;

}  // namespace causeway::server
