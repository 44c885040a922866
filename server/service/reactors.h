// One reactor for each open call, in the file of its name: it turns messages into calls of Coordinator and its answers
// into writes. Reactors live from the call's begin to its OnDone; gRPC's threads run them.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "server/service/coordinator.h"
#include "server/service/gate.h"

namespace causeway::server {

// absl and gRPC number their codes alike.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

CallReactor* NewControlReactor(Coordinator* coordinator, Gate* gate, Peer peer);
CallReactor* NewFollowReactor(Coordinator* coordinator, Gate* gate, Peer peer);
CallReactor* NewUploadReactor(Coordinator* coordinator, Gate* gate, Peer peer);
CallReactor* NewDownloadReactor(Coordinator* coordinator, Gate* gate, Peer peer);

}  // namespace causeway::server
