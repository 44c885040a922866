#include "ctl/standard_streams.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace causeway::ctl {
namespace {

// Bare system calls: a sanitizer is not ready yet for its own versions of open and fcntl.
__attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined"))) void OpenThoseThatAreClosed() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) >= 0 || errno != EBADF) continue;
    const int64_t opened = syscall(SYS_openat, AT_FDCWD, "/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
    if (opened != fd) return;  // it is the lowest free number, unless there is no /dev/null
  }
}

// Before the constructors of any library: gRPC's make descriptors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all_else)() = OpenThoseThatAreClosed;

int first_error = 0;  // of a write to standard output

}  // namespace

void PrepareStandardStreams() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

bool FlushStandardOutput() {
  const int copy = dup(STDOUT_FILENO);
  errno = 0;
  bool written = std::fflush(stdout) == 0;
  written = (copy < 0 || close(copy) == 0) && written;  // network file systems report a full disk at close
  if (first_error == 0) first_error = written ? 0 : errno;
  // A write that failed when the buffer was full left no reason behind: another byte of the incomplete result has one.
  if (first_error == 0 && std::ferror(stdout) != 0 && write(STDOUT_FILENO, "\n", 1) < 0) first_error = errno;
  errno = first_error;
  return written && first_error == 0 && std::ferror(stdout) == 0;
}

bool IsStandardOutput(const char* path) {
  struct stat file = {}, output = {};
  return stat(path, &file) == 0 && fstat(STDOUT_FILENO, &output) == 0 && file.st_dev == output.st_dev &&
         file.st_ino == output.st_ino && !S_ISDIR(file.st_mode);
}

}  // namespace causeway::ctl
