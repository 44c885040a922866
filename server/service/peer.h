// Who calls, as the connection and the call's headers show it.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <vector>

namespace causeway::server {

struct Peer {
  std::vector<std::string> names;  // of its certificate: common name and DNS names; empty without TLS
  std::string token;               // empty: none came
  std::string address;             // as gRPC writes it
  std::string call;                // that it makes: a name of coordinator.proto
  std::string unit;                // of its certificate: the organizational unit, where operators have their role
  std::string serial;              // of its certificate: lower-case hexadecimal digits, without zeros before

  std::string Name() const;     // of its certificate, or else its host
  std::string Address() const;  // "127.0.0.1:7077", "[::1]:7077"
};

// The certificate and the token of a call.
Peer PeerOf(const grpc::ServerContextBase& context, const std::string& call);

// A certificate in PEM, as it describes itself beside its names; nothing if it cannot be read.
struct CertificateFacts {
  std::string unit;
  std::string serial;
};
CertificateFacts FactsOf(const std::string& pem);

// "00AB" → "ab"
std::string NormalSerial(const std::string& hex);

}  // namespace causeway::server
