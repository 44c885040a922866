// The few POSIX calls under every file format, with errors that name the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway::formats {

// Owns an open file. Move-only; closes it on destruction.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "cannot <what> <path>: <the system's reason>", from errno.
absl::Status FileError(const std::string& what, const std::string& path);
std::string FileSizeLimit();  // " (ulimit -f allows files of … bytes)"; empty: none is set

// Opens a regular file to read; a folder, pipe or device is an error, since all formats here need a size.
absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path);

absl::StatusOr<int64_t> FileSize(const FileDescriptor& file, const std::string& path);

// Fills `out` from `offset`. DATA_LOSS where the file ends before.
absl::Status ReadAt(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<std::byte> out);

// Writes all bytes, from the file's current position.
absl::Status WriteAll(const FileDescriptor& file, const std::string& path, std::span<const std::byte> bytes);

// The whole of a small file. `max_bytes` keeps a wrong path from filling memory.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// The names in a folder; NOT_FOUND: there is none, UNAVAILABLE: it cannot be read. The library's own iterator throws
// where a read fails on the way.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder);

// Whether something is there, behind links; no where there is nothing, or a folder above it may not be searched.
bool Exists(const std::string& path);

// Holds the lock of a folder until it is closed: DIR/lock. PERMISSION_DENIED: it cannot be written.
// FAILED_PRECONDITION: another process holds it, a `holder`. UNAVAILABLE: the file system has no locks.
absl::StatusOr<FileDescriptor> LockFolder(const std::string& flag, const std::string& folder,
                                          const std::string& holder);

// Makes the folder, which only this user may read, and those above it, where they are missing: the rights of one that
// is there stay. UNAVAILABLE: it cannot be made.
absl::Status MakePrivateFolder(const std::string& path);

// Makes the folder and those above it where they are missing. UNAVAILABLE: it cannot be made or written to.
absl::Status MakeWritableFolder(const std::string& path);

}  // namespace causeway::formats
