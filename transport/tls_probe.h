// Why there is no connection. gRPC says "Socket closed" for an expired certificate and for a plaintext port alike, so
// after a failure this shakes hands once more, by itself, and looks at what happens.
#pragma once

#include <string>

#include "transport/channel.h"

namespace causeway::transport {

// What is wrong and what to do about it, in one line; "" if nothing of TLS is found to be. `files` are what the program
// uses, not given for plaintext. Takes up to some seconds, where nobody answers. Safe from any thread.
std::string WhyNoConnection(const Address& address, const TlsFiles& files);

// Explains why a connection failed: the name, the port, what TLS has to say, or else gRPC's words.
std::string ExplainFailure(const std::string& error, const Address& address, const TlsFiles& files);

}  // namespace causeway::transport
