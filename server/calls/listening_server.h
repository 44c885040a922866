// A gRPC server that listens, with gRPC's own services for health and reflection, which reveal nothing about the run
// and require no token. Connections are accepted here: gRPC 1.51 stops listening once it has met the limit of
// descriptors (ulimit -n), and the state's files need some: kDescriptorsKept, or a quarter of those left, stay free.
// While too few are left, callers wait.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/address.h"
#include "core/thread.h"
#include "formats/posix_file.h"
#include "server/calls/call_service.h"
#include "transport/tls.h"

namespace causeway::server {

inline constexpr int kDescriptorsKept = 32;

class ListeningServer {
 public:
  // The port taken goes into `address`. UNAVAILABLE says why it cannot listen there. `service` outlives it.
  static absl::StatusOr<std::unique_ptr<ListeningServer>> Start(CallService& service, int64_t fragments,
                                                                core::Address& address, const transport::TlsFiles& tls);
  // Ends the server: answers in progress have 200 ms, and open streams are ended.
  ~ListeningServer();

 private:
  using Sockets = std::vector<formats::FileDescriptor>;

  explicit ListeningServer(Sockets sockets) : sockets_(std::move(sockets)) {}
  static Sockets Listen(core::Address& address);
  void Accept();

  const Sockets sockets_;
  std::atomic<bool> closes_ = false;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  core::Thread thread_;  // uses everything above
};

}  // namespace causeway::server
