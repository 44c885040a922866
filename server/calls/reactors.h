// One reactor for each open call, each kind in the file of its name: it turns messages into calls of RunExchange, and
// the answers into writes. A reactor lives from the start of its call to its OnDone, and runs on gRPC's threads.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "server/calls/gate.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

// absl and gRPC use the same code numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

CallReactor* NewControlReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewFollowReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewUploadReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewDownloadReactor(RunExchange* exchange, Gate* gate, Peer peer);

}  // namespace causeway::server
