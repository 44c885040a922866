#include "ctl/standard_streams.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace causeway::ctl {

void PrepareStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    (void)open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);  // takes the lowest free number, which is fd
  }
  signal(SIGPIPE, SIG_IGN);
}

bool FlushStandardOutput() {
  errno = 0;
  if (std::fflush(stdout) != 0) return false;
  if (std::ferror(stdout) != 0) {  // an earlier write, whose errno is lost
    errno = 0;
    return false;
  }
  const int copy = dup(STDOUT_FILENO);
  return copy < 0 || close(copy) == 0;  // network file systems report a full disk at close
}

bool IsStandardOutput(const char* path) {
  struct stat file = {}, output = {};
  return stat(path, &file) == 0 && fstat(STDOUT_FILENO, &output) == 0 && file.st_dev == output.st_dev &&
         file.st_ino == output.st_ino && !S_ISDIR(file.st_mode);
}

}  // namespace causeway::ctl
