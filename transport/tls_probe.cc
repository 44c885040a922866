#include "transport/tls_probe.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace causeway::transport {
namespace {

constexpr timeval kTimeout{.tv_sec = 3, .tv_usec = 0};  // for each step; several round trips of a slow link
constexpr unsigned char kHttp2[] = {2, 'h', '2'};       // required by gRPC

// OpenSSL writes to sockets that may be closed. That must not raise a signal, at least in this thread.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe() {
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

class Socket {
 public:
  explicit Socket(const Address& address) {
    addrinfo* found = nullptr;
    const addrinfo hints{.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) != 0) return;
    for (const addrinfo* entry = found; entry != nullptr && descriptor_ < 0; entry = entry->ai_next) Connect(*entry);
    freeaddrinfo(found);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }  // −1: not connected

 private:
  void Connect(const addrinfo& entry) {
    descriptor_ = socket(entry.ai_family, entry.ai_socktype | SOCK_CLOEXEC, entry.ai_protocol);
    if (descriptor_ < 0) return;
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
    if (connect(descriptor_, entry.ai_addr, entry.ai_addrlen) == 0) return;
    close(descriptor_);
    descriptor_ = -1;
  }

  int descriptor_ = -1;
};

using ContextPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;

std::string Names(const X509* certificate) {
  std::string names;
  auto* list = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(list); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(list, i);
    if (name->type != GEN_DNS && name->type != GEN_IPADD) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ");
    const ASN1_STRING* text = name->type == GEN_DNS ? name->d.dNSName : name->d.iPAddress;
    if (name->type == GEN_DNS) {
      absl::StrAppend(&names, std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                          static_cast<size_t>(ASN1_STRING_length(text))));
    } else if (ASN1_STRING_length(text) == 4) {
      const unsigned char* b = ASN1_STRING_get0_data(text);
      absl::StrAppend(&names, b[0], ".", b[1], ".", b[2], ".", b[3]);
    } else {
      absl::StrAppend(&names, "an IPv6 address");
    }
  }
  GENERAL_NAMES_free(list);
  return names.empty() ? "no name" : names;
}

// The fault of the coordinator's certificate; "" if none.
std::string ItsFault(const SSL* ssl, const Address& address, const TlsFiles& files) {
  const X509* const certificate = SSL_get0_peer_certificate(ssl);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return "the coordinator's certificate has expired: replace the files of its --tls_cert and --tls_key";
  }
  switch (const long result = SSL_get_verify_result(ssl)) {
    case X509_V_OK: return "";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "the coordinator's certificate is not valid yet: is this machine's clock right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("the coordinator's certificate is for ", Names(certificate), ", not for ", address.host,
                          ": call it by a name that the certificate has, or make one with --coordinator ", address.host,
                          " (deploy/certs)");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::StrCat("the coordinator's certificate is not of the CA in --tls_ca=", files.ca,
                          ": take the ca.pem that was made with it");
    default: return absl::StrCat("the coordinator's certificate is refused: ", X509_verify_cert_error_string(result));
  }
}

// The fault of our certificate as far as we can see; gRPC's server closes the connection without an alert.
std::string OurFault(const ContextPtr& context, const TlsFiles& files) {
  X509* const certificate = SSL_CTX_get0_certificate(context.get());
  if (certificate == nullptr) return absl::StrCat("it cannot be read from --tls_cert=", files.cert);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) return "it has expired: replace it and its key";
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> chain(X509_STORE_CTX_new(),
                                                                              X509_STORE_CTX_free);
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(context.get(), &between);
  X509_STORE_CTX_init(chain.get(), SSL_CTX_get_cert_store(context.get()), certificate, between);
  X509_STORE_CTX_set_default(chain.get(), "ssl_client");
  if (X509_verify_cert(chain.get()) == 1) return "look at its log, and at its --tls_ca";
  switch (const int error = X509_STORE_CTX_get_error(chain.get())) {
    case X509_V_ERR_INVALID_PURPOSE: return "it is not made for sites: make one with --site (deploy/certs)";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::StrCat("it is not of the CA in --tls_ca=", files.ca, ", and the coordinator's is");
    default: return X509_verify_cert_error_string(error);
  }
}

// The coordinator's complaint about us, inferred from its alert or its silence; "" if it is something else.
std::string ItsComplaint(int error, const ContextPtr& context, const TlsFiles& files) {
  const int reason = error == SSL_ERROR_SSL ? ERR_GET_REASON(ERR_peek_error()) : 0;
  const bool closed = error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && errno == ECONNRESET);
  if (reason == 0 && !closed) return "";
  const std::string refused = absl::StrCat("the coordinator refuses our certificate, --tls_cert=", files.cert, ": ");
  if (closed || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return refused + OurFault(context, files);
  return refused + ERR_reason_error_string(ERR_peek_error());
}

ContextPtr MakeContext(const Address& address, const TlsFiles& files) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  if (!files.given()) return context;
  SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr);
  SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str());
  SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);  // checks, but continues: nothing secret is sent
  X509_VERIFY_PARAM* names = SSL_CTX_get0_param(context.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(names, address.host.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(names, address.host.c_str(), 0);
  }
  return context;
}

// Whether an HTTP/1 server answers there, as the coordinator's status page does.
bool SpeaksHttp1(const Address& address) {
  const WithoutSigpipe quiet;
  const Socket socket(address);
  constexpr std::string_view kRequest = "GET /healthz HTTP/1.0\r\n\r\n", kAnswer = "HTTP/1.";
  if (socket.descriptor() < 0) return false;
  if (send(socket.descriptor(), kRequest.data(), kRequest.size(), 0) != static_cast<ssize_t>(kRequest.size()))
    return false;
  char answer[kAnswer.size()];
  return recv(socket.descriptor(), answer, sizeof(answer), MSG_WAITALL) == static_cast<ssize_t>(sizeof(answer)) &&
         std::string_view(answer, sizeof(answer)) == kAnswer;
}

std::string IsHttpPort(const Address& address) {
  return absl::StrCat(address.port, " is an HTTP port, as the status page's is (--http); sites take that of --listen");
}

std::string LostPackets(const Address& address) {
  return absl::StrCat(
      "a firewall or proxy in between drops what it carries, or large packets alone are lost (an MTU): ping -M "
      "do -s 1400 ",
      address.host, " tells, and a smaller MTU of this machine's interface helps");
}

}  // namespace

std::string WhyNoConnection(const Address& address, const TlsFiles& files) {
  const WithoutSigpipe quiet;
  const Socket socket(address);
  if (socket.descriptor() < 0) return "";  // no peer there: gRPC reports that well
  const ContextPtr context = MakeContext(address, files);
  const SslPtr ssl(SSL_new(context.get()), SSL_free);
  SSL_set_fd(ssl.get(), socket.descriptor());
  const std::string host = address.host;
  SSL_set_tlsext_host_name(ssl.get(), host.c_str());
  ERR_clear_error();
  int result = SSL_connect(ssl.get());
  const bool speaks_tls = SSL_get0_peer_certificate(ssl.get()) != nullptr;
  std::string why;
  if (!files.given()) {
    if (speaks_tls) why = "the coordinator speaks TLS: give --tls_ca, --tls_cert and --tls_key";
  } else if (speaks_tls) {
    why = ItsFault(ssl.get(), address, files);
    char byte = 0;
    if (result == 1) result = SSL_read(ssl.get(), &byte, 1);  // TLS 1.3 checks our certificate after the handshake
    if (why.empty() && result <= 0) why = ItsComplaint(SSL_get_error(ssl.get(), result), context, files);
  } else if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_WRONG_VERSION_NUMBER) {
    why =
        SpeaksHttp1(address)
            ? IsHttpPort(address)
            : "the coordinator does not speak TLS: start it with --tls_ca, --tls_cert and --tls_key, or leave them out";
  }
  const int left = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl.get(), result);
  if (why.empty() && files.given() && (left == SSL_ERROR_WANT_READ || left == SSL_ERROR_WANT_WRITE)) {
    why = absl::StrCat("a connection is made, and no answer comes to its TLS handshake: ", LostPackets(address));
  }
  ERR_clear_error();
  return why;
}

std::string ExplainFailure(const std::string& error, const Address& address, const ChannelOptions& options) {
  if (options.proxy) {
    return absl::StrCat("by the proxy ", options.proxy->address.Text(), " of ", options.proxy->source, ": ", error);
  }
  if (absl::StrContains(error, "http1.x server")) return IsHttpPort(address);
  if (absl::StrContains(error, "Domain name not found")) return absl::StrCat(address.host, ": no such host");
  if (absl::StrContains(error, "Could not contact DNS servers")) {
    return absl::StrCat(address.host, ": no DNS server answers, and /etc/hosts does not have it");
  }
  if (absl::StrContains(error, "Connection refused")) return "no server listens there";
  if (absl::StrContains(error, "keepalive watchdog timeout")) return absl::StrCat(error, ": ", LostPackets(address));
  if (absl::StrContains(error, "refused") || absl::StrContains(error, "imeout")) return error;
  const std::string why = WhyNoConnection(address, options.tls);
  return why.empty() ? error : why;
}

}  // namespace causeway::transport
