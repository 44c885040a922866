// Asks a coordinator for its run's description.
//
//   DescribeRequest ─► gRPC ~~► coordinator ~~► gRPC's thread ─► answer ─► the thread that waits here
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/ids.h"
#include "core/shard.h"
#include "transport/channel.h"

namespace causeway::transport {

inline constexpr int64_t kStopPollMs = 50;  // how long a wait may outlive its caller

// Makes one attempt, of at most five seconds; gives up if cancelled. Thread-safe.
grpc::Status AskForDescription(v1::Coordinator::Stub& stub, const core::SiteId& site,
                               absl::FunctionRef<bool()> cancelled, v1::RunDescription& description);

// OK if the answer comes from the run's coordinator. UNAVAILABLE: retry. PERMISSION_DENIED: a retry does not help.
// Pure.
absl::Status MeaningOf(const grpc::Status& status, const v1::RunDescription& description, const core::Shard& expected,
                       const Address& coordinator);

}  // namespace causeway::transport
