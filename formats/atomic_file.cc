#include "formats/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "core/check.h"

namespace causeway::formats {

absl::Status SyncFolderOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open() || ::fsync(opened.get()) != 0) return FileError("sync", folder);
  return absl::OkStatus();
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path) {
  FileDescriptor file(::open((path + ".tmp").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) return FileError("create", path);
  return AtomicFile(path, std::move(file));
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) ::unlink(temporary_path().c_str());
}

absl::Status AtomicFile::Append(std::span<const std::byte> bytes) {
  CHECK(file_.is_open());
  digest_.Add(bytes);
  return WriteAll(file_, path_, bytes);
}

absl::Status AtomicFile::Append(std::string_view text) { return Append(std::as_bytes(std::span<const char>(text))); }

absl::Status AtomicFile::Commit() {
  CHECK(file_.is_open());
  if (::fsync(file_.get()) != 0) return FileError("sync", path_);
  if (::rename(temporary_path().c_str(), path_.c_str()) != 0) return FileError("replace", path_);
  const FileDescriptor done = std::move(file_);  // nothing left to remove
  return SyncFolderOf(path_);
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  RETURN_IF_ERROR(file.Append(contents));
  return file.Commit();
}

}  // namespace causeway::formats
