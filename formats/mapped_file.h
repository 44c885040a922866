// A whole file in memory, read-only: its pages come from disk when they are read, and all programs that map it share
// them. Move-only, thread-safe. Truncating a file while it is mapped ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace causeway::formats {

class MappedFile {
 public:
  // INVALID_ARGUMENT for an empty file: it cannot be mapped.
  static absl::StatusOr<MappedFile> Map(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace causeway::formats
