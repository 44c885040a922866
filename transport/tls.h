// Mutual TLS: each side shows a certificate of the CA that the other side was given.
//
//   --tls_ca ──► whom we believe      --tls_cert, --tls_key ──► who we are
//
// The files are read again while the program runs, so certificates are renewed by replacing them: open connections
// stay, new ones use the new files. A replacement that does not fit together changes nothing until it does. gRPC's TLS
// credentials do the work (grpcpp/security/tls_credentials_options.h); this adds errors that say what to do. Free
// functions, safe from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace causeway::transport {

struct TlsFiles {
  std::string ca;    // PEM, one certificate or several: whose peers are believed
  std::string cert;  // PEM, ours first, then what lies between it and the peer's CA
  std::string key;   // PEM, of the first of them, not encrypted

  bool given() const { return !ca.empty(); }
};

// How often the files are looked at. Certificates live for days; a person who replaces one waits for this long.
inline constexpr int kTlsReloadSeconds = 10;

// What the flags --tls_ca, --tls_cert and --tls_key say. INVALID_ARGUMENT that names what is missing if some but not
// all are given, and what is wrong if the files cannot be read, do not parse, do not belong together or are not valid
// now.
absl::StatusOr<TlsFiles> ReadTlsFlags(const std::string& ca, const std::string& cert, const std::string& key);

// The coordinator's side: a client without a certificate of that CA gets no connection.
std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const TlsFiles& files, int reload_s = kTlsReloadSeconds);

// The site's side: the coordinator's certificate must name the host that was dialled.
std::shared_ptr<grpc::ChannelCredentials> TlsChannelCredentials(const TlsFiles& files,
                                                                int reload_s = kTlsReloadSeconds);

// The token in a file, of one line of printable characters. INVALID_ARGUMENT if there is none.
absl::StatusOr<std::string> ReadToken(const std::string& path);

}  // namespace causeway::transport
