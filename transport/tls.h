// Mutual TLS: each side presents a certificate of the CA that the other side trusts.
//
//   --tls_ca ──► peers we trust      --tls_cert, --tls_key ──► our identity
//
// The files are reread while the program runs, so certificates are renewed by replacing them: open connections stay,
// new ones use the new files. A replacement whose files do not match takes no effect until they do. gRPC's TLS
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
  std::string ca;    // PEM, one certificate or several: the CAs whose peers are trusted
  std::string cert;  // PEM, ours first, then the intermediate ones up to the peer's CA
  std::string key;   // PEM, for the first certificate, not encrypted

  bool given() const { return !ca.empty(); }
};

// The interval at which the files are checked. Certificates live for days; a person who replaces one waits this long.
inline constexpr int kTlsReloadSeconds = 10;

// Reads the flags --tls_ca, --tls_cert and --tls_key. INVALID_ARGUMENT names the missing flag if some but not all are
// given, or the fault if the files cannot be read, do not parse, do not match or are not valid now.
absl::StatusOr<TlsFiles> ReadTlsFlags(const std::string& ca, const std::string& cert, const std::string& key);

// The coordinator's side: a client without a certificate of that CA gets no connection.
std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const TlsFiles& files, int reload_s = kTlsReloadSeconds);

// The site's side: the coordinator's certificate must name the host that was dialled.
std::shared_ptr<grpc::ChannelCredentials> TlsChannelCredentials(const TlsFiles& files,
                                                                int reload_s = kTlsReloadSeconds);

// The token in a file that holds one line of printable characters. INVALID_ARGUMENT if there is none.
absl::StatusOr<std::string> ReadToken(const std::string& path);

}  // namespace causeway::transport
