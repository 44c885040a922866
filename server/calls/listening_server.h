// A gRPC server that listens, with gRPC's own services for health and reflection, which reveal nothing about the run
// and require no token.
#pragma once

#include <grpcpp/server.h>

#include <memory>

#include "absl/status/statusor.h"
#include "core/address.h"
#include "server/calls/call_service.h"
#include "transport/tls.h"

namespace causeway::server {

class ListeningServer {
 public:
  // The port taken goes into `address`. UNAVAILABLE says why it cannot listen there. `service` outlives it.
  static absl::StatusOr<std::unique_ptr<ListeningServer>> Start(CallService& service, int64_t fragments,
                                                                core::Address& address, const transport::TlsFiles& tls);
  // In time, however its user's function ends: answers in progress have 200 ms, and open streams are ended.
  ~ListeningServer();

 private:
  explicit ListeningServer(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}

  const std::unique_ptr<grpc::Server> server_;
};

}  // namespace causeway::server
