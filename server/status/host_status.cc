#include "server/status/host_status.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "formats/named_file.h"

namespace causeway::server {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Seconds since 1970 when the machine started.
double BootTime() {
  for (const absl::string_view line : absl::StrSplit(ReadText("/proc/stat"), '\n')) {
    double seconds = 0;
    if (line.substr(0, 6) == "btime " && absl::SimpleAtod(line.substr(6), &seconds)) return seconds;
  }
  return 0;
}

}  // namespace

ProcessStatus ReadProcessStatus() {
  static const double boot = BootTime();
  const std::string stat = ReadText("/proc/self/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  // Fields 3 and on of proc(5): state is the first.
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
  if (fields.size() < 22) return {};
  const auto number = [&fields](int field) {
    double value = 0;
    return absl::SimpleAtod(fields[field - 3], &value) ? value : 0;
  };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return {.start_unix_s = boot + number(22) / ticks,
          .resident_bytes = static_cast<int64_t>(number(24)) * sysconf(_SC_PAGESIZE),
          .cpu_s = (number(14) + number(15)) / ticks};
}

std::optional<int64_t> CertificateExpiry(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                      BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      bio == nullptr ? nullptr : PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free);
  std::tm end{};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) return std::nullopt;
  return timegm(&end);
}

HostStatus HostWatch::Read() {
  HostStatus host{.disk_reserved_bytes = files_.reserved_bytes};
  struct statvfs disk {};
  if (!files_.state_dir.empty() && statvfs(files_.state_dir.c_str(), &disk) != 0) {
    if (errno == ENOENT) host.missing_dir = files_.state_dir;
  } else if (!files_.state_dir.empty()) {
    host.disk_free_bytes = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (disk.f_files > 0) host.disk_free_files = static_cast<int64_t>(disk.f_favail);
  }
  if (files_.log) host.log = files_.log();
  host.file_faults = formats::NamedFileFaults();
  struct stat file {};
  if (!files_.certificate.empty() && stat(files_.certificate.c_str(), &file) == 0) {
    const int64_t mtime_ns = file.st_mtim.tv_sec * int64_t{1'000'000'000} + file.st_mtim.tv_nsec;
    if (mtime_ns != read_mtime_ns_)
      expires_unix_s_ = CertificateExpiry(formats::ReadNamedFile("tls_cert", files_.certificate).value_or(""));
    read_mtime_ns_ = mtime_ns;
    host.certificate_expires_unix_s = expires_unix_s_;
  }
  return host;
}

}  // namespace causeway::server
