#include "transport/tls.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/text.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "transport/tls_files.h"

namespace causeway::transport {

absl::StatusOr<TlsFiles> ReadTlsFlags(const std::string& ca, const std::string& cert, const std::string& key) {
  TlsFiles files{ca, cert, key};
  if (ca.empty() && cert.empty() && key.empty()) return files;
  std::string missing;
  for (const auto& [flag, value] : {std::pair("--tls_ca", ca), {"--tls_cert", cert}, {"--tls_key", key}}) {
    if (value.empty()) absl::StrAppend(&missing, missing.empty() ? "" : " and ", flag);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS takes --tls_ca, --tls_cert and --tls_key together; missing: ", missing));
  }
  RETURN_IF_ERROR(ReadTlsTexts(files).status());
  WarnIfOthersRead("tls_key", key);
  return files;
}

std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const TlsFiles& files, int reload_s) {
  grpc::experimental::TlsServerCredentialsOptions options(WatchTlsFiles(files, reload_s));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TlsChannelCredentials(const TlsFiles& files, int reload_s) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(WatchTlsFiles(files, reload_s));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::HostNameCertificateVerifier>());
  return grpc::experimental::TlsCredentials(options);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadCredentialFile("token_file", path));
  WarnIfOthersRead("token_file", path);
  const std::string words(core::WithoutByteOrderMark(text));
  std::string token(absl::StripAsciiWhitespace(words));
  const bool one_word = std::ranges::all_of(token, [](char c) { return absl::ascii_isgraph(c); });
  if (!token.empty() && token.size() <= core::kMaxTokenBytes && one_word) return token;
  return absl::InvalidArgumentError(absl::StrCat("--token_file=", path, ": expected one word of 1 to ",
                                                 core::kMaxTokenBytes, " printable characters"));
}

}  // namespace causeway::transport
