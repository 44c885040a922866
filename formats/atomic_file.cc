#include "formats/atomic_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::formats {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;     // as Linux follows them
constexpr int kMostWriters = 100;  // of one path at once

std::string FolderOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// In /proc, links lead to what is open, like a pipe, and have no path behind them.
bool IsInProc(const std::string& path) {
  struct statfs system = {};
  return ::statfs(FolderOf(path).c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

absl::StatusOr<std::string> BehindLinks(const std::string& given) {
  fs::path path = given;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(path, error);
    if (error || IsInProc(path)) return path.string();
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  errno = ELOOP;
  return FileError("follow the links of", given);
}

// The descriptor of this process that /dev/stdout, /dev/fd/3 and their like stand for: opened by their path they would
// be written from the beginning.
std::optional<int> OwnDescriptor(const std::string& path) {
  std::error_code error;
  int number = 0;
  const bool in_proc = IsInProc(path) && fs::canonical(FolderOf(path), error).filename() == "fd" &&
                       fs::canonical(FolderOf(path) + "/..", error) == fs::canonical("/proc/self", error);
  if (!in_proc || !absl::SimpleAtoi(fs::path(path).filename().string(), &number)) return std::nullopt;
  return number;
}

FileDescriptor OpenToWriteTo(const std::string& path) {
  if (const std::optional<int> own = OwnDescriptor(path)) {
    return FileDescriptor(::fcntl(*own, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  }
  return FileDescriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
}

bool IsSameFile(const FileDescriptor& file, const std::string& path) {
  struct stat opened = {}, named = {};
  return ::fstat(file.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// Locked and empty. Not open, with errno: it cannot be created. No value: `path` is another writer's, or no regular
// file, and another name has to be taken.
std::optional<FileDescriptor> OpenTemporary(const std::string& path) {
  while (true) {
    FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!file.is_open() && (errno == ELOOP || errno == ENXIO || errno == EISDIR)) return std::nullopt;
    if (!file.is_open()) return file;
    struct stat info = {};
    if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
    // Another user's, or a second name of another file: neither is emptied.
    if (info.st_uid != ::geteuid() || info.st_nlink > 1) return std::nullopt;
    // Some network file systems have no locks: then there is one writer at a time.
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
    if (!IsSameFile(file, path)) continue;  // its writer has renamed or removed it since
    if (::ftruncate(file.get(), 0) != 0) return FileDescriptor();
    return file;
  }
}

}  // namespace

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = FolderOf(path);
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open() || ::fsync(opened.get()) != 0) return FileError("sync", folder);
  return absl::OkStatus();
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& given) {
  ASSIGN_OR_RETURN(std::string path, BehindLinks(given));
  struct stat info = {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return absl::InvalidArgumentError(FileError("replace", path).message());
  }
  if (exists && (!S_ISREG(info.st_mode) || IsInProc(path))) {
    FileDescriptor file = OpenToWriteTo(path);
    if (!file.is_open()) return FileError("open", path);
    return AtomicFile(std::move(path), "", std::move(file));
  }
  for (int writer = 1; writer <= kMostWriters; ++writer) {
    std::string temporary = writer == 1 ? path + ".tmp" : absl::StrCat(path, ".", writer, ".tmp");
    std::optional<FileDescriptor> file = OpenTemporary(temporary);
    if (!file) continue;
    if (!file->is_open()) return FileError("create", path);
    return AtomicFile(std::move(path), std::move(temporary), *std::move(file));
  }
  return absl::UnavailableError(absl::StrCat("cannot create ", path, ": ", kMostWriters, " temporary files of it (",
                                             path, ".tmp, …) exist already; remove stale ones"));
}

AtomicFile::~AtomicFile() {
  if (file_.is_open() && !temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status AtomicFile::Append(std::span<const std::byte> bytes) {
  CHECK(file_.is_open());
  digest_.Add(bytes);
  return WriteAll(file_, path_, bytes);
}

absl::Status AtomicFile::Append(std::string_view text) { return Append(std::as_bytes(std::span<const char>(text))); }

absl::Status AtomicFile::Commit() {
  CHECK(file_.is_open());
  if (temporary_.empty()) {
    const FileDescriptor done = std::move(file_);
    const bool cannot = ::fsync(done.get()) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS;
    return cannot ? FileError("sync", path_) : absl::OkStatus();  // pipes and terminals keep nothing
  }
  if (::fsync(file_.get()) != 0) return FileError("sync", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return FileError("replace", path_);
  const FileDescriptor done = std::move(file_);  // nothing left to remove
  return SyncFolderOf(path_);
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  RETURN_IF_ERROR(file.Append(contents));
  return file.Commit();
}

std::string NumberedFiles::Path(int64_t number) const {
  return absl::StrFormat("%s/%06d%s", folder, number, extension);
}

std::vector<int64_t> NumberedFiles::Numbers() const {
  std::vector<int64_t> numbers;
  for (const std::string& name : NamesIn(folder).value_or(std::vector<std::string>())) {
    int64_t number = 0;
    const bool is_number = absl::SimpleAtoi(name.substr(0, name.find('.')), &number);
    if (is_number && Path(number) == absl::StrCat(folder, "/", name)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace causeway::formats
