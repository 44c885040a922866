// Asks for the run's description until the coordinator answers, or it makes no more sense.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "transport/link_options.h"
#include "transport/session_link.h"
#include "transport/wire.h"

namespace causeway::transport {

// `stops` ends an attempt; `wait(ms)` returns true if it did meanwhile. UNAVAILABLE after options.connect_timeout_s,
// CANCELLED if stopped, PERMISSION_DENIED if the peer is no coordinator that we understand, or another shard.
absl::StatusOr<RunDescription> AwaitDescription(Wire& wire, const LinkOptions& options,
                                                const std::function<bool()>& stops,
                                                const std::function<bool(int64_t backoff_ms)>& wait);

}  // namespace causeway::transport
