// The caller, as identified by the connection and the call's headers.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <vector>

namespace causeway::server {

struct Peer {
  std::vector<std::string> names;  // its certificate's common name and DNS names; empty without TLS
  std::string token;               // empty: none sent
  std::string address;             // in gRPC's notation
  std::string call;                // the call made: a name of coordinator.proto
  std::string unit;                // its certificate's organizational unit, which gives an operator's role
  std::string serial;              // its certificate's serial: lower-case hexadecimal digits, no leading zeros

  std::string Name() const;     // the name in its certificate, or else its host
  std::string Address() const;  // "127.0.0.1:7077", "[::1]:7077"
};

// The certificate and the token of a call.
Peer PeerOf(const grpc::ServerContextBase& context, const std::string& call);

// Fields of a PEM certificate besides its names; empty if it cannot be read.
struct CertificateFacts {
  std::string unit;
  std::string serial;
};
CertificateFacts FactsOf(const std::string& pem);

// "00AB" → "ab"
std::string NormalSerial(const std::string& hex);

}  // namespace causeway::server
