#include "transport/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/text.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace causeway::transport {
namespace {

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;

absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": ", std::strerror(errno)));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad() || text.empty() || text.size() > core::kMaxCredentialFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": expected 1 to ",
                                                   core::kMaxCredentialFileBytes, " bytes, got ", text.size()));
  }
  return text;
}

BioPtr OpenText(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

int NoPassword(char*, int, int, void*) { return -1; }

std::string TimeText(const ASN1_TIME* time) {
  const BioPtr out(BIO_new(BIO_s_mem()), BIO_free);
  ASN1_TIME_print(out.get(), time);
  char text[64] = {};
  BIO_read(out.get(), text, sizeof(text) - 1);
  return text;
}

// Empty if the certificate is valid now.
std::string Fault(const X509* certificate) {
  const ASN1_TIME* begin = X509_get0_notBefore(certificate);
  const ASN1_TIME* end = X509_get0_notAfter(certificate);
  const char* wrong = nullptr;
  if (X509_cmp_current_time(begin) > 0) wrong = "is not valid yet (is this machine's clock right?)";
  if (X509_cmp_current_time(end) < 0) wrong = "has expired: make a new one, deploy/certs does";
  if (wrong == nullptr) return "";
  return absl::StrCat("the certificate ", wrong, "; it is valid from ", TimeText(begin), " to ", TimeText(end));
}

// Reads the certificates of the file, in order. In a bundle of CAs one valid certificate suffices: an old one may stand
// beside its successor.
absl::StatusOr<std::vector<X509Ptr>> ReadCertificates(const std::string& flag, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(flag, path));
  const BioPtr in = OpenText(text);
  std::vector<X509Ptr> certificates;
  std::string fault;
  size_t faults = 0;
  while (X509* certificate = PEM_read_bio_X509(in.get(), nullptr, NoPassword, nullptr)) {
    certificates.emplace_back(certificate, X509_free);
    const std::string wrong = Fault(certificate);
    if (wrong.empty()) continue;
    if (faults++ == 0) fault = wrong;
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !at_end) {
    fault = absl::StrCat("expected certificates in PEM (-----BEGIN CERTIFICATE-----), got ",
                         certificates.empty() ? "none" : "one that is damaged");
  } else if (faults < (flag == "tls_ca" ? certificates.size() : 1)) {
    return certificates;
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": ", fault));
}

absl::StatusOr<KeyPtr> ReadKey(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile("tls_key", path));
  KeyPtr key(PEM_read_bio_PrivateKey(OpenText(text).get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("--tls_key=", path, ": expected a private key in PEM without a password, got ",
                   text.find("ENCRYPTED") == std::string::npos ? "something else" : "an encrypted one"));
}

absl::Status CheckFiles(const TlsFiles& files) {
  RETURN_IF_ERROR(ReadCertificates("tls_ca", files.ca).status());
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> certificates, ReadCertificates("tls_cert", files.cert));
  ASSIGN_OR_RETURN(const KeyPtr key, ReadKey(files.key));
  const bool fit = X509_check_private_key(certificates.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (fit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--tls_key=", files.key,
                                                 " is not the key of the certificate in "
                                                 "--tls_cert=",
                                                 files.cert, ": give the two files that were made together"));
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Watch(const TlsFiles& files, int reload_s) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.key, files.cert, files.ca,
                                                                              static_cast<unsigned>(reload_s));
}

}  // namespace

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
  RETURN_IF_ERROR(CheckFiles(files));
  return files;
}

std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const TlsFiles& files, int reload_s) {
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files, reload_s));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TlsChannelCredentials(const TlsFiles& files, int reload_s) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files, reload_s));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::HostNameCertificateVerifier>());
  return grpc::experimental::TlsCredentials(options);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile("token_file", path));
  const std::string words(core::WithoutByteOrderMark(text));
  std::string token(absl::StripAsciiWhitespace(words));
  const bool one_word = std::ranges::all_of(token, [](char c) { return absl::ascii_isgraph(c); });
  if (!token.empty() && token.size() <= core::kMaxTokenBytes && one_word) return token;
  return absl::InvalidArgumentError(absl::StrCat("--token_file=", path, ": expected one word of 1 to ",
                                                 core::kMaxTokenBytes, " printable characters"));
}

}  // namespace causeway::transport
