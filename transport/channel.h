// Addresses and gRPC channels, with the settings that matter on a WAN in one place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/address.h"
#include "core/environment.h"
#include "core/ids.h"
#include "core/limits.h"
#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"
#include "transport/answers.h"
#include "transport/tls.h"

namespace causeway::transport {

// The HTTP proxy that the environment names for a coordinator (--use_proxy).
//
//   grpc_proxy, https_proxy, http_proxy, all_proxy, and these in capital letters; the first that is set
//     http://USER:PASSWORD@proxy:3128 ──► CONNECT coordinator:7077, with USER and PASSWORD percent-decoded
//   no_grpc_proxy, no_proxy, NO_PROXY: hosts that are reached directly
//
// gRPC itself reads the first three in lower case alone, passes over what it does not understand, and then connects
// directly without a word; so the proxy is looked for here.
struct Proxy {
  core::Address address;
  std::string credentials;  // "user:password"; empty: none
  std::string source;       // the variable, for messages: "https_proxy"
};

// Nullopt: `coordinator` is among the hosts that are reached directly. INVALID_ARGUMENT: no variable names a proxy, or
// it names one that gRPC cannot use; the error has what was found, without its password.
absl::StatusOr<std::optional<Proxy>> FindProxy(const core::Address& coordinator, const core::Environment& environment);

// The header of CONNECT for these credentials: "Proxy-Authorization:Basic …".
std::string ProxyHeader(const std::string& credentials);

using core::Address;

struct ChannelOptions {
  bool insecure = false;       // plaintext beyond loopback
  std::optional<Proxy> proxy;  // none: the coordinator is reached directly
  TlsFiles tls;                // plaintext if not given
  int tls_reload_s = kTlsReloadSeconds;
  std::string token;                           // sent with every call; empty: none
  std::shared_ptr<Answers> answers = nullptr;  // learns who answers
};

// For callers without TLS files: INVALID_ARGUMENT if plaintext would leave the machine without options.insecure.
absl::Status CheckPlaintextAllowed(const Address& address, bool insecure);
// INVALID_ARGUMENT if other machines could read the status page, which has no password, without `insecure_http`.
absl::Status CheckHttpAllowed(const Address& address, bool insecure_http);

// The flags of a program that calls a coordinator.
struct ClientFlags {
  bool insecure = false;
  bool use_proxy = false;                             // use the proxy that the environment names (FindProxy)
  std::string tls_ca, tls_cert, tls_key, token_file;  // paths; empty: not given
};

// INVALID_ARGUMENT if the flags do not fit together or do not fit the address, or if a file's contents are invalid.
absl::StatusOr<ChannelOptions> ReadClientFlags(const ClientFlags& flags, const Address& address);

// The purpose of a connection. A ping on a bulk connection waits behind data that the kernel has already accepted, so
// it is allowed more time.
enum class Traffic { kControl, kBulk };

// A channel with its own TCP connection, so that bulk and control do not share one. `at`: the address to connect to, of
// those that the name has; none: gRPC resolves the name.
std::shared_ptr<grpc::Channel> MakeChannel(const Address& address, const ChannelOptions& options, Traffic traffic,
                                           const std::optional<Address>& at = std::nullopt);

// Applies the coordinator's counterpart of these settings, and the limits on an unknown peer.
void ConfigureServer(grpc::ServerBuilder& builder, int fragments = core::kMaxFragments);

// A site's link to one coordinator, as its owner wants it: plain values.
struct LinkOptions {
  Address coordinator;
  std::vector<Address> all = {};  // that, and those of its standbys
  ChannelOptions channel;
  core::RunId run;  // empty: as the coordinator describes it
  core::SiteId site;
  core::Shard shard;              // the shard that is expected at that address
  int64_t connect_timeout_s = 0;  // gives up after being unreached for this long; 0 = never
  double max_up_bytes_per_s = 0;  // payload rate; 0 = as fast as it goes
  double max_down_bytes_per_s = 0;
  int channels = 0;  // TCP connections over which a transfer is spread; 0 = by measurement
};

// The text of a call's error, and its likely cause if there was no connection (tls_probe.h).
std::string Explain(const LinkOptions& options, bool unconnected, const std::string& error);

}  // namespace causeway::transport
