// Addresses and gRPC channels, with the settings that matter on a WAN written once.
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
  bool use_proxy = false;  // http_proxy and its like from the environment
  TlsFiles tls;            // plaintext without
  int tls_reload_s = kTlsReloadSeconds;
  std::string token;  // goes with every call; empty: none
};

// INVALID_ARGUMENT if plaintext would leave the machine without options.insecure. For whoever has no TLS files.
absl::Status CheckPlaintextAllowed(const Address& address, bool insecure);

// The flags of a program that calls a coordinator.
struct ClientFlags {
  bool insecure = false;
  bool use_proxy = false;
  std::string tls_ca, tls_cert, tls_key, token_file;  // paths; empty: not given
};

// INVALID_ARGUMENT if they do not fit together or with the address, or what a file holds is wrong.
absl::StatusOr<ChannelOptions> ReadClientFlags(const ClientFlags& flags, const Address& address);

// What a connection is for. A ping on a bulk connection waits behind the data that the kernel has taken already, so it
// gets longer to be answered.
enum class Traffic { kControl, kBulk };

// A channel with a TCP connection of its own, so that bulk and control do not share one.
std::shared_ptr<grpc::Channel> MakeChannel(const Address& address, const ChannelOptions& options, Traffic traffic);

// The coordinator's counterpart of these settings, and what bounds an unknown peer.
void ConfigureServer(grpc::ServerBuilder& builder, int fragments = core::kMaxFragments);

}  // namespace causeway::transport
