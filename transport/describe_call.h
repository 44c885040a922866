// Asks a coordinator what run it is.
//
//   DescribeRequest ─► gRPC ~~► coordinator ~~► gRPC's thread ─► answer ─► the thread that waits here
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/ids.h"

namespace causeway::transport {

inline constexpr int64_t kStopPollMs = 50;  // how long a wait may outlive the one who waits

// Once, for at most five seconds; gives up when it is cancelled. Thread-safe.
grpc::Status AskForDescription(v1::Coordinator::Stub& stub, const core::SiteId& site,
                               absl::FunctionRef<bool()> cancelled, v1::RunDescription& description);

}  // namespace causeway::transport
