// The calls of a coordinator that rebuilds its state: it asks sites that join to show what they hold, and to wait;
// every other call returns UNAVAILABLE in the meantime.
#pragma once

#include <memory>

#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "server/rebuild/rebuild.h"

namespace causeway::server {

// `rebuild` and `gate` outlive the service.
std::unique_ptr<CallService> NewRebuildService(Rebuild* rebuild, Gate* gate);

}  // namespace causeway::server
