// A gRPC server that listens, with gRPC's own services for health and reflection, which reveal nothing about the run
// and require no token. Connections are accepted here: gRPC 1.51 stops listening once it has met the limit of
// descriptors (ulimit -n), and the state's files need some: kDescriptorsKept, or a quarter of those left, stay free.
// While too few are left, callers wait.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/address.h"
#include "core/ids.h"
#include "core/thread.h"
#include "formats/posix_file.h"
#include "server/calls/call_service.h"
#include "transport/channel.h"
#include "transport/tls.h"

namespace causeway::server {

// The addresses at which a coordinator listens, and its shard, as its flags say.
// The values of the flags with these names.
struct ListeningFlags {
  std::string listen, http, health;
  std::string shard, membership, standby_of, advertise;
  bool insecure = false, insecure_http = false;
  std::string tls_ca, tls_cert, tls_key;
  std::string membership_token_file, membership_tls_cert, membership_tls_key;  // at --standby_of, too
};

// Our own addresses, and that of the run's shard 0.
struct Listening {
  core::Address grpc;
  core::Address http;
  std::optional<core::Address> health;
  transport::TlsFiles tls;
  core::Shard shard;
  core::Address lead;                // shard 0's address, for a shard beyond the first
  std::vector<core::Address> leads;  // that, and its standbys
  transport::ChannelOptions lead_channel;
  std::optional<core::Address> leader;  // that this is a standby of
  transport::ClientFlags client;        // as which we call other coordinators
  std::string advertised;               // HOST:PORT by which others reach us; empty: `grpc`
};

// INVALID_ARGUMENT names the flag, what was expected, and the value given.
absl::StatusOr<Listening> ReadListening(const ListeningFlags& flags);

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
