// The calls of a coordinator that rebuilds its state: sites that ask to join are told to show what they hold, and to
// wait; everything else is UNAVAILABLE for the time being.
#pragma once

#include <memory>

#include "server/rebuild/rebuild.h"
#include "server/service/call_service.h"
#include "server/service/gate.h"

namespace causeway::server {

// Both outlive it.
std::unique_ptr<CallService> NewRebuildService(Rebuild* rebuild, Gate* gate);

}  // namespace causeway::server
