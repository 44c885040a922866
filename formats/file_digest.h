// The digest of a file: its size and XXH3-64. It detects disk errors, not deliberate changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct XXH3_state_s;

namespace causeway::formats {

struct FileDigest {
  int64_t bytes = 0;
  uint64_t hash = 0;

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

// Takes bytes that come one after the other. Move-only.
class RunningDigest {
 public:
  RunningDigest();

  void Add(std::span<const std::byte> bytes);
  FileDigest value() const;  // the digest of all bytes so far

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  int64_t bytes_ = 0;
};

absl::StatusOr<FileDigest> DigestOfFile(const std::string& path);

// DATA_LOSS "<path> is damaged: expected 10 bytes with XXH3-64 0123456789abcdef, got …"; or the read error.
absl::Status CheckFile(const std::string& path, const FileDigest& expected);

}  // namespace causeway::formats
