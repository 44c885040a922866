// The machine's figures for a coordinator: free disk space, the end of its certificate, the resources of its process.
// Reads /proc, statvfs and a PEM file; nothing is cached but a certificate that has not changed. One owner at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "server/status/status_snapshot.h"

namespace causeway::server {

// Figures of this process; 0 if one cannot be read.
struct ProcessStatus {
  double start_unix_s = 0;
  int64_t resident_bytes = 0;
  double cpu_s = 0;  // user and system
};
ProcessStatus ReadProcessStatus();

struct HostFiles {
  std::string state_dir;  // the directory whose file system is checked; empty: none
  int64_t reserved_bytes = 0;
  std::string certificate;                // PEM; empty: none
  std::function<core::LogFigures()> log;  // figures of the program's log; nullptr: it has none
};

class HostWatch {
 public:
  explicit HostWatch(HostFiles files) : files_(std::move(files)) {}

  HostStatus Read();

 private:
  const HostFiles files_;
  int64_t read_mtime_ns_ = -1;  // mtime of the certificate that was read last
  std::optional<int64_t> expires_unix_s_;
};

// The expiry of the first certificate in a PEM text, in seconds since 1970; none if the text holds no certificate.
std::optional<int64_t> CertificateExpiry(const std::string& pem);

}  // namespace causeway::server
