// The files of --tls_ca, --tls_cert and --tls_key, as gRPC may read them: those that fit together.
//
//   the operator's files ── changed? whole, valid, a pair? ──► copies in memory ──► gRPC's own watcher
//
// gRPC takes any certificate and key that it finds. Where they are replaced one after the other, or one is half
// written, every new connection would fail until they fit. So a set that does not fit is not handed on: the one before
// stays, and the log names the file.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "transport/tls.h"

namespace causeway::transport {

struct TlsTexts {
  std::string ca, cert, key;

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// INVALID_ARGUMENT names the flag and the file that cannot be read, does not parse, does not match or is not valid now.
absl::StatusOr<TlsTexts> ReadTlsTexts(const TlsFiles& files);

// The text of `flag`'s file. INVALID_ARGUMENT: it cannot be read, or is empty.
absl::StatusOr<std::string> ReadCredentialFile(const std::string& flag, const std::string& path);

// Logs it, if every user of this machine may read the file.
void WarnIfOthersRead(const std::string& flag, const std::string& path);

// For gRPC's credentials. The files must have been read once without an error; they are read again about every
// `reload_s`, on a thread, until the process ends.
std::shared_ptr<grpc::experimental::CertificateProviderInterface> WatchTlsFiles(const TlsFiles& files, int reload_s);

}  // namespace causeway::transport
