// The C library's calls that change files, in its place: first the disk's faults, then the call itself, then the disk's
// account of it. Files elsewhere are not looked at.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <map>

#include "tests/sim/disk.h"

namespace causeway::sim {
namespace {

struct OpenFile {
  Disk* disk = nullptr;
  std::string path;
};

// By descriptor; a process of the simulation that is killed leaves its own open.
std::map<int, OpenFile>& OpenFiles() {
  static auto* const files = new std::map<int, OpenFile>;
  return *files;
}

OpenFile* Find(int fd) {
  const auto found = OpenFiles().find(fd);
  return found == OpenFiles().end() ? nullptr : &found->second;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int Open(const char* path, int flags, mode_t mode) {
  static const auto real = Real<int (*)(const char*, int, ...)>("open64");
  Disk* const disk = core::TheSimulation() == nullptr ? nullptr : Disk::Of(path);
  struct stat before;
  const bool existed = disk != nullptr && ::stat(path, &before) == 0;
  const int fd = real(path, flags, mode);
  if (disk == nullptr || fd < 0) return fd;
  OpenFiles()[fd] = {disk, path};
  if (!existed && (flags & O_CREAT) != 0) disk->Created(path);
  if (existed && (flags & O_TRUNC) != 0) disk->Truncated(path, 0);
  return fd;
}

int64_t OffsetOf(int fd) {
  if ((fcntl(fd, F_GETFL) & O_APPEND) == 0) return lseek(fd, 0, SEEK_CUR);
  struct stat info;
  return fstat(fd, &info) == 0 ? info.st_size : 0;
}

ssize_t WriteAt(int fd, const void* bytes, size_t size, int64_t offset,
                ssize_t (*write)(int, const void*, size_t, int64_t)) {
  const OpenFile* const file = Find(fd);
  if (file == nullptr) return write(fd, bytes, size, offset);
  const OpenFile named = *file;  // others may open files while a fault takes its time
  if (const int error = named.disk->BeforeWrite()) {
    errno = error;
    return -1;
  }
  const ssize_t written = write(fd, bytes, size, offset);
  if (written > 0) named.disk->Wrote(named.path, offset, bytes, static_cast<size_t>(written));
  return written;
}

int Sync(int fd, int (*sync)(int)) {
  const OpenFile* const file = Find(fd);
  if (file == nullptr) return sync(fd);
  const OpenFile named = *file;
  if (const int error = named.disk->BeforeSync()) {
    errno = error;
    return -1;
  }
  named.disk->Synced(named.path);  // it is memory that the simulation crashes
  return 0;
}

int Unlink(const char* path, int (*unlink)(const char*)) {
  const int result = unlink(path);
  Disk* const disk = result != 0 || core::TheSimulation() == nullptr ? nullptr : Disk::Of(path);
  if (disk != nullptr) disk->Unlinked(path);
  return result;
}

}  // namespace
}  // namespace causeway::sim

using namespace causeway::sim;  // NOLINT(google-build-using-namespace): what follows has C's names

// The shared libraries are to find these, too.
#pragma GCC visibility push(default)
extern "C" {

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Open(path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return Open(path, flags, mode);
}

int close(int fd) {
  static const auto real = Real<int (*)(int)>("close");
  OpenFiles().erase(fd);
  return real(fd);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = Real<ssize_t (*)(int, const void*, size_t)>("write");
  if (Find(fd) == nullptr) return real(fd, bytes, size);
  return WriteAt(fd, bytes, size, OffsetOf(fd), [](int f, const void* b, size_t s, int64_t) { return real(f, b, s); });
}

ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = Real<ssize_t (*)(int, const iovec*, int)>("writev");
  if (Find(fd) == nullptr) return real(fd, parts, count);
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t written = write(fd, parts[i].iov_base, parts[i].iov_len);
    if (written < 0) return all > 0 ? all : written;
    all += written;
    if (static_cast<size_t>(written) < parts[i].iov_len) break;
  }
  return all;
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  static const auto real = Real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return WriteAt(fd, bytes, size, offset, [](int f, const void* b, size_t s, int64_t o) { return real(f, b, s, o); });
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) { return pwrite64(fd, bytes, size, offset); }

int fsync(int fd) {
  static const auto real = Real<int (*)(int)>("fsync");
  return Sync(fd, real);
}
int fdatasync(int fd) {
  static const auto real = Real<int (*)(int)>("fdatasync");
  return Sync(fd, real);
}

int ftruncate64(int fd, off64_t size) {
  static const auto real = Real<int (*)(int, off64_t)>("ftruncate64");
  const int result = real(fd, size);
  const OpenFile* const file = Find(fd);
  if (result == 0 && file != nullptr) file->disk->Truncated(file->path, size);
  return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int rename(const char* from, const char* to) {
  static const auto real = Real<int (*)(const char*, const char*)>("rename");
  const int result = real(from, to);
  Disk* const disk = result != 0 || causeway::core::TheSimulation() == nullptr ? nullptr : Disk::Of(from);
  if (disk != nullptr) disk->Renamed(from, to);
  return result;
}

int unlink(const char* path) {
  static const auto real = Real<int (*)(const char*)>("unlink");
  return Unlink(path, real);
}
int remove(const char* path) {
  static const auto real = Real<int (*)(const char*)>("remove");
  return Unlink(path, real);
}
int unlinkat(int folder, const char* name, int flags) {
  static const auto real = Real<int (*)(int, const char*, int)>("unlinkat");
  std::string path = name;
  if (const OpenFile* const parent = Find(folder)) path = parent->path + "/" + name;
  const int result = real(folder, name, flags);
  Disk* const disk = result != 0 || causeway::core::TheSimulation() == nullptr ? nullptr : Disk::Of(path);
  if (disk != nullptr) disk->Unlinked(path);
  return result;
}

}  // extern "C"
#pragma GCC visibility pop
