// The calls of a coordinator that rebuilds its state: it asks sites that join to show what they hold, and to wait;
// every other call returns UNAVAILABLE in the meantime.
#pragma once

#include <memory>
#include <optional>

#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "server/rebuild/rebuild.h"

namespace causeway::server {

// `leads`: the answer to those who ask who leads, where the state says so; nothing: that is known once it is rebuilt.
// `rebuild` and `gate` outlive the service.
std::unique_ptr<CallService> NewRebuildService(Rebuild* rebuild, Gate* gate,
                                               const std::optional<v1::RunDescription>& leads);

}  // namespace causeway::server
