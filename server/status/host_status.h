// What the machine says about a coordinator: room on its disk, when its certificate ends, what the process takes.
// Reads /proc, statvfs and a PEM file; nothing is cached but a certificate that has not changed. One owner at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/status/status_snapshot.h"

namespace causeway::server {

// Of this process; what cannot be read is 0.
struct ProcessStatus {
  double start_unix_s = 0;
  int64_t resident_bytes = 0;
  double cpu_s = 0;  // user and system
};
ProcessStatus ReadProcessStatus();

struct HostFiles {
  std::string state_dir;  // whose file system is looked at; empty: none
  int64_t reserved_bytes = 0;
  std::string certificate;  // PEM; empty: none
};

class HostWatch {
 public:
  explicit HostWatch(HostFiles files) : files_(std::move(files)) {}

  HostStatus Read();

 private:
  const HostFiles files_;
  int64_t read_mtime_ns_ = -1;  // of the certificate that was read
  std::optional<int64_t> expires_unix_s_;
};

// When the first certificate of a PEM text ends, in seconds since 1970; none if it holds none.
std::optional<int64_t> CertificateExpiry(const std::string& pem);

}  // namespace causeway::server
