#include "formats/posix_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::formats {

FileDescriptor::~FileDescriptor() {
  if (is_open()) ::close(fd_);
}

std::string FileSizeLimit() {
  rlimit limit = {};
  const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? absl::StrCat(" (ulimit -f allows files of ", limit.rlim_cur, " bytes)") : "";
}

absl::Status FileError(const std::string& what, const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path, error == EFBIG ? FileSizeLimit() : ""));
}

absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return FileError("open", path);
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return FileError("read", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a regular file, got a ", S_ISDIR(info.st_mode) ? "folder" : "pipe or device"));
  }
  return file;
}

absl::StatusOr<int64_t> FileSize(const FileDescriptor& file, const std::string& path) {
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return FileError("read", path);
  return static_cast<int64_t>(info.st_size);
}

absl::Status ReadAt(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(file.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path);
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": expected ", out.size(), " more bytes at ", offset, ", got none"));
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const FileDescriptor& file, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("write", path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error == std::errc::no_such_file_or_directory) return absl::NotFoundError(folder + ": there is no such folder");
  if (error) return absl::UnavailableError(absl::StrCat("cannot read folder ", folder, ": ", error.message()));
  return names;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<FileDescriptor> LockFolder(const std::string& flag, const std::string& folder,
                                          const std::string& holder) {
  const std::string path = folder + "/lock";
  FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.is_open()) {
    return absl::PermissionDeniedError(absl::StrCat(flag, ": cannot write ", path, ": ", std::strerror(errno)));
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat(flag, ": another ", holder, " runs on ", folder, "; each needs its own"));
  }
  return absl::UnavailableError(
      absl::StrCat(flag, ": cannot lock ", path, ": ", std::strerror(errno),
                   "; name a folder on a disk of this machine, or mount that file system with "
                   "locks (NFS: without nolock, or with local_lock=flock)"));
}

absl::Status MakePrivateFolder(const std::string& path) {
  std::filesystem::path own(path);
  if (!own.has_filename()) own = own.parent_path();
  std::error_code error;
  if (own.has_parent_path()) std::filesystem::create_directories(own.parent_path(), error);
  if (!error && (::mkdir(own.c_str(), S_IRWXU) == 0 || (errno == EEXIST && std::filesystem::is_directory(own, error))))
    return absl::OkStatus();
  const std::string why = error ? error.message() : std::strerror(errno);
  return absl::UnavailableError(absl::StrCat("cannot create folder ", path, ": ", why));
}

absl::Status MakeWritableFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create folder ", path, ": ", error.message()));
  if (::access(path.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write to folder ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const FileDescriptor file, OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  if (size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected at most ", max_bytes, " bytes, got ", size));
  }
  std::string contents(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(ReadAt(file, path, 0, std::as_writable_bytes(std::span<char>(contents))));
  return contents;
}

}  // namespace causeway::formats
