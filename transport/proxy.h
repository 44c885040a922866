// The HTTP proxy that the environment names for a coordinator (--use_proxy).
//
//   grpc_proxy, https_proxy, http_proxy, all_proxy, and these in capital letters; the first that is set
//     http://USER:PASSWORD@proxy:3128 ──► CONNECT coordinator:7077, with USER and PASSWORD percent-decoded
//   no_grpc_proxy, no_proxy, NO_PROXY: hosts that are reached directly
//
// gRPC itself reads the first three in lower case alone, passes over what it does not understand, and then connects
// directly without a word; so the proxy is looked for here.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/address.h"
#include "core/environment.h"

namespace causeway::transport {

struct Proxy {
  core::Address address;
  std::string credentials;  // "user:password"; empty: none
  std::string source;       // the variable, for messages: "https_proxy"
};

// None: `coordinator` is among the hosts that are reached directly. INVALID_ARGUMENT, with what was found and without
// its password: no variable names a proxy, or one of a kind that gRPC cannot use.
absl::StatusOr<std::optional<Proxy>> FindProxy(const core::Address& coordinator, const core::Environment& environment);

// The header of CONNECT for these credentials: "Proxy-Authorization:Basic …".
std::string ProxyHeader(const std::string& credentials);

}  // namespace causeway::transport
