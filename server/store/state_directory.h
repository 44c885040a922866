// The directory of one coordinator's state: creates it, locks it against a second coordinator, and checks its disk
// space. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/posix_file.h"

namespace causeway::server {

class StateDirectory {
 public:
  // Creates the directory, with snapshots/ and segments/ in it, and takes its lock. FAILED_PRECONDITION: another
  // coordinator runs there. PERMISSION_DENIED: it cannot be written.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& directory);

  const std::string& path() const { return path_; }
  std::string segments() const { return path_ + "/segments"; }
  std::string snapshots() const { return path_ + "/snapshots"; }

  // RESOURCE_EXHAUSTED if fewer than `min_free_bytes` would be free on its disk after writing `bytes`. 0: not checked.
  absl::Status CheckRoom(int64_t bytes, int64_t min_free_bytes) const;

 private:
  StateDirectory(std::string path, formats::FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  const std::string path_;
  const formats::FileDescriptor lock_;  // held until it is closed
};

// addresses.json: where the coordinator listens.
absl::Status WriteAddresses(const std::string& state_dir, const std::string& grpc, const std::string& http);

// Advice for the operator of a coordinator that has failed: the state there is safe, or it is gone.
std::string AfterFailure(const std::string& state_dir);

}  // namespace causeway::server
