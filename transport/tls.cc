#include "transport/tls.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/mutex.h"
#include "core/text.h"
#include "core/thread.h"
#include "formats/named_file.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace causeway::transport {
namespace {

// The files of --tls_ca, --tls_cert and --tls_key, as gRPC may read them: those that fit together.
//
//   the operator's files ── changed? whole, valid, a pair? ──► copies in memory ──► gRPC's own watcher
//
// gRPC takes any certificate and key that it finds. Where they are replaced one after the other, or one is half
// written, every new connection would fail until they fit. So a set that does not fit is not handed on: the one before
// stays, and the log names the file.
struct TlsTexts {
  std::string ca, cert, key;

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// INVALID_ARGUMENT names the flag and the file that cannot be read, does not parse, does not match or is not valid now.
absl::StatusOr<TlsTexts> ReadTlsTexts(const TlsFiles& files);

// For gRPC's credentials. The files must have been read once without an error; they are read again about every
// `reload_s`, on a thread, until the process ends.
std::shared_ptr<grpc::experimental::CertificateProviderInterface> WatchTlsFiles(const TlsFiles& files, int reload_s);

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;

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

// The certificates of the file's text, in order. In a bundle of CAs one valid certificate suffices: an old one may
// stand beside its successor.
absl::StatusOr<std::vector<X509Ptr>> ParseCertificates(const std::string& flag, const std::string& path,
                                                       const std::string& text) {
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

absl::StatusOr<KeyPtr> ParseKey(const std::string& path, const std::string& text) {
  KeyPtr key(PEM_read_bio_PrivateKey(OpenText(text).get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("--tls_key=", path, ": expected a private key in PEM without a password, got ",
                   text.find("ENCRYPTED") == std::string::npos ? "something else" : "an encrypted one"));
}

// Copies of the files that gRPC reads through the process's own descriptors. A descriptor changes to another file in
// one step, so that no reader finds a part of the old and a part of the new one; certificate and key are in one file.
class Copies {
 public:
  explicit Copies(TlsFiles files) : files_(std::move(files)) {}

  absl::Status Begin() {
    ASSIGN_OR_RETURN(taken_, ReadTlsTexts(files_));
    RETURN_IF_ERROR(Replace(ca_, taken_.ca));
    return Replace(pair_, PairOf(taken_));
  }

  void Look() {
    const absl::StatusOr<TlsTexts> texts = ReadTlsTexts(files_);
    const bool changed = !texts.ok() || *texts != taken_;
    absl::Status status = texts.status();
    if (status.ok() && changed) status = Replace(ca_, texts->ca);
    if (status.ok() && changed) status = Replace(pair_, PairOf(*texts));
    const bool news = formats::NoteNamedFile("--tls_cert=" + files_.cert, status);
    if (!status.ok()) {
      if (news) spdlog::warn("{}; the files of before stay in use until that is mended", std::string(status.message()));
    } else if (changed) {
      taken_ = *texts;
      spdlog::info("--tls_cert={}: new connections use the files that are there now", files_.cert);
    }
  }

  bool IsOf(const TlsFiles& files) const {
    return files.ca == files_.ca && files.cert == files_.cert && files.key == files_.key;
  }
  std::string ca() const { return PathOf(ca_); }
  std::string pair() const { return PathOf(pair_); }

 private:
  static std::string PairOf(const TlsTexts& texts) { return absl::StrCat(texts.cert, "\n", texts.key); }
  static std::string PathOf(int descriptor) { return absl::StrCat("/proc/self/fd/", descriptor); }

  // `descriptor` becomes one of a file in memory with this text; −1: it is none yet.
  static absl::Status Replace(int& descriptor, const std::string& text) {
    const int copy = ::memfd_create("causeway-tls", MFD_CLOEXEC);
    const bool written = copy >= 0 && ::write(copy, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                         (descriptor < 0 || ::dup3(copy, descriptor, O_CLOEXEC) >= 0);
    const int error = errno;
    if (written && descriptor < 0) {
      descriptor = copy;
    } else if (copy >= 0) {
      ::close(copy);
    }
    if (written) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("cannot copy --tls_ca, --tls_cert or --tls_key into memory: ", std::strerror(error)));
  }

  const TlsFiles files_;
  TlsTexts taken_;
  int ca_ = -1, pair_ = -1;  // until the process ends
};

// Looks at all files in use, on one thread that ends with the process.
class Watcher {
 public:
  static Watcher& Of(int every_ms) {
    // There first, so that they go last: a look may end with the process.
    (void)spdlog::default_logger_raw();
    OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr);
    static core::Mutex mutex;
    static std::map<int, std::unique_ptr<Watcher>> watchers;
    const core::MutexLock lock(mutex);
    std::unique_ptr<Watcher>& watcher = watchers[every_ms];
    if (watcher == nullptr) watcher.reset(new Watcher(every_ms));
    return *watcher;
  }

  ~Watcher() {
    {
      const core::MutexLock lock(mutex_);
      ends_ = true;
    }
    changed_.NotifyAll();
    thread_.Join();
  }

  // nullptr: they cannot be copied, as without /proc.
  Copies* Add(const TlsFiles& files) {
    const core::MutexLock lock(mutex_);
    for (const auto& copies : copies_) {
      if (copies->IsOf(files)) return copies.get();
    }
    auto copies = std::make_unique<Copies>(files);
    const absl::Status begun = copies->Begin();
    const bool readable = begun.ok() && ::access(copies->pair().c_str(), R_OK) == 0;
    if (!readable) return nullptr;
    copies_.push_back(std::move(copies));
    return copies_.back().get();
  }

 private:
  explicit Watcher(int every_ms) : every_(every_ms), thread_([this] { Run(); }) {}

  void Run() {
    core::MutexLock lock(mutex_);
    while (!ends_) {
      lock.WaitFor(changed_, every_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_; });
      if (ends_) return;
      for (const auto& copies : copies_) copies->Look();
    }
  }

  const std::chrono::milliseconds every_;
  core::Mutex mutex_;
  core::Condition changed_;
  std::vector<std::unique_ptr<Copies>> copies_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

// The text of `flag`'s file. INVALID_ARGUMENT: it cannot be read, or is empty.
absl::StatusOr<std::string> ReadCredentialFile(const std::string& flag, const std::string& path) {
  absl::StatusOr<std::string> text = formats::ReadNamedFile(flag, path);
  if (!text.ok() || !text->empty()) return text;
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": expected a credential, got an empty file"));
}

// Logs it, if every user of this machine may read the file.
void WarnIfOthersRead(const std::string& flag, const std::string& path) {
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || (file.st_mode & S_IROTH) == 0) return;
  spdlog::warn("--{}={}: every user of this machine may read it; chmod o-r", flag, path);
}

absl::StatusOr<TlsTexts> ReadTlsTexts(const TlsFiles& files) {
  TlsTexts texts;
  ASSIGN_OR_RETURN(texts.ca, ReadCredentialFile("tls_ca", files.ca));
  ASSIGN_OR_RETURN(texts.cert, ReadCredentialFile("tls_cert", files.cert));
  ASSIGN_OR_RETURN(texts.key, ReadCredentialFile("tls_key", files.key));
  RETURN_IF_ERROR(ParseCertificates("tls_ca", files.ca, texts.ca).status());
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> certificates, ParseCertificates("tls_cert", files.cert, texts.cert));
  ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(files.key, texts.key));
  const bool fit = X509_check_private_key(certificates.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (fit) return texts;
  return absl::InvalidArgumentError(absl::StrCat("--tls_key=", files.key,
                                                 " is not the key of the certificate in "
                                                 "--tls_cert=",
                                                 files.cert, ": give the two files that were made together"));
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> WatchTlsFiles(const TlsFiles& files, int reload_s) {
  using grpc::experimental::FileWatcherCertificateProvider;
  const Copies* copies = Watcher::Of(reload_s * 500).Add(files);  // gRPC looks as often again
  if (copies == nullptr) {
    spdlog::warn("--tls_cert={}: is read as it is, also while it is replaced", files.cert);
    return std::make_shared<FileWatcherCertificateProvider>(files.key, files.cert, files.ca,
                                                            static_cast<unsigned>(reload_s));
  }
  return std::make_shared<FileWatcherCertificateProvider>(copies->pair(), copies->pair(), copies->ca(),
                                                          static_cast<unsigned>(std::max(1, reload_s / 2)));
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
