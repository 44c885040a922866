// Finds out why there is no connection. gRPC says "Socket closed" both for an expired certificate and for a plaintext
// port, so after a failure this performs a handshake of its own and observes the result.
#pragma once

#include <string>

#include "transport/channel.h"

namespace causeway::transport {

// The fault and its remedy, in one line; "" if no fault with TLS is found. `files` are those that the program uses, not
// given for plaintext. Takes up to a few seconds if there is no answer. Safe from any thread.
std::string WhyNoConnection(const Address& address, const TlsFiles& files);

// Explains why a connection failed: the name, the port, what TLS has to say, or else gRPC's words; behind a proxy only
// gRPC's words, with the proxy.
std::string ExplainFailure(const std::string& error, const Address& address, const ChannelOptions& options);

}  // namespace causeway::transport
