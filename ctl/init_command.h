// causewayctl init: a folder with everything that a run's sites need to begin.
//
//   --sites=eu=HOST:PORT,us=HOST:PORT,…  ─►  DIR/run.yaml       placement: sites
//                                            DIR/addresses      each shard's site and address, in their order
//                                            DIR/start-eu …     the one command of each site: its shard and its worker
//                                            DIR/site-eu.env …  the same for deploy/site.compose.yaml and systemd
#pragma once

#include "absl/status/status.h"

namespace causeway::ctl {

// INVALID_ARGUMENT for flags and a run.yaml that do not fit; ALREADY_EXISTS: DIR has one of these files, and nothing
// was written.
absl::Status RunInitCommand(const std::string& out);

}  // namespace causeway::ctl
