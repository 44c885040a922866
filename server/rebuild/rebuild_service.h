// The calls of a coordinator that rebuilds its state: sites that ask to join are told to show what they hold, and to
// wait; everything else is UNAVAILABLE for the time being.
#pragma once

#include "server/rebuild/rebuild.h"
#include "server/service/gate.h"
#include "server/service/unary_service.h"

namespace causeway::server {

// Both outlive it.
Services NewRebuildServices(Rebuild* rebuild, Gate* gate);

}  // namespace causeway::server
