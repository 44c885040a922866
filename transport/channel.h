// Addresses and gRPC channels, with the settings that matter on a WAN in one place.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/limits.h"
#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"
#include "transport/tls.h"

namespace causeway::transport {

struct Address {
  std::string host;  // name, IPv4, or IPv6 without brackets
  int port = 0;

  std::string Text() const;  // "host:port", IPv6 in brackets
  bool IsLoopback() const;   // localhost, 127.x.y.z, ::1
};

// INVALID_ARGUMENT unless the text is HOST:PORT with a port from 0 to 65535.
absl::StatusOr<Address> ParseAddress(const std::string& text);

struct ChannelOptions {
  bool insecure = false;   // plaintext beyond loopback
  bool use_proxy = false;  // use http_proxy and similar variables from the environment
  TlsFiles tls;            // plaintext if not given
  int tls_reload_s = kTlsReloadSeconds;
  std::string token;  // sent with every call; empty: none
};

// For callers without TLS files: INVALID_ARGUMENT if plaintext would leave the machine without options.insecure.
absl::Status CheckPlaintextAllowed(const Address& address, bool insecure);
// INVALID_ARGUMENT if other machines could read the status page, which has no password, without `insecure_http`.
absl::Status CheckHttpAllowed(const Address& address, bool insecure_http);

// The flags of a program that calls a coordinator.
struct ClientFlags {
  bool insecure = false;
  bool use_proxy = false;
  std::string tls_ca, tls_cert, tls_key, token_file;  // paths; empty: not given
};

// INVALID_ARGUMENT if the flags do not fit together or do not fit the address, or if a file's contents are invalid.
absl::StatusOr<ChannelOptions> ReadClientFlags(const ClientFlags& flags, const Address& address);

// The purpose of a connection. A ping on a bulk connection waits behind data that the kernel has already accepted, so
// it is allowed more time.
enum class Traffic { kControl, kBulk };

// A channel with its own TCP connection, so that bulk and control do not share one.
std::shared_ptr<grpc::Channel> MakeChannel(const Address& address, const ChannelOptions& options, Traffic traffic);

// Applies the coordinator's counterpart of these settings, and the limits on an unknown peer.
void ConfigureServer(grpc::ServerBuilder& builder, int fragments = core::kMaxFragments);

}  // namespace causeway::transport
