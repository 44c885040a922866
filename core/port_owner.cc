#include "core/port_owner.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace causeway::core {
namespace {

namespace fs = std::filesystem;

constexpr char kListening[] = "0A";  // TCP_LISTEN, as the kernel prints it

// "socket:[INODE]" of each socket that listens on the port, as links of /proc/PID/fd name them.
std::set<std::string> ListeningSockets(int port) {
  std::set<std::string> sockets;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // names of the columns
    while (std::getline(file, line)) {
      std::istringstream columns(line);
      std::string index, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      columns >> index >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      int local_port = 0;
      const size_t colon = local.find(':');
      if (colon == std::string::npos || !absl::SimpleHexAtoi(local.substr(colon + 1), &local_port)) continue;
      if (local_port == port && state == kListening) sockets.insert(absl::StrCat("socket:[", inode, "]"));
    }
  }
  return sockets;
}

bool HoldsOneOf(const std::set<std::string>& sockets, const fs::path& process) {
  std::error_code error;  // a process that has ended, or another user's
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end; at.increment(error)) {
    std::error_code closed;
    if (sockets.contains(fs::read_symlink(at->path(), closed).string())) return true;
  }
  return false;
}

// Tries it: the libraries that listen keep the reason of a failure to themselves.
bool IsTaken(const std::string& host, int port) {
  const addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return false;
  const int descriptor = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  const bool taken = bind(descriptor, found->ai_addr, found->ai_addrlen) != 0 && errno == EADDRINUSE;
  if (descriptor >= 0) close(descriptor);
  freeaddrinfo(found);
  return taken;
}

}  // namespace

std::string OwnerOfPort(int port) {
  const std::set<std::string> sockets = ListeningSockets(port);
  if (sockets.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const fs::path process = at->path();
    const std::string pid = process.filename();
    if (!absl::ascii_isdigit(static_cast<unsigned char>(pid[0])) || !HoldsOneOf(sockets, process)) continue;
    std::error_code ended;
    const fs::path program = fs::read_symlink(process / "exe", ended).filename();
    return absl::StrCat(program.empty() ? "a program" : program.string(), " (pid ", pid, ")");
  }
  return "";
}

std::string WhyNotListening(const std::string& host, int port) {
  const std::string address = absl::StrCat(host.find(':') == std::string::npos ? host : "[" + host + "]", ":", port);
  const std::string owner = IsTaken(host, port) ? OwnerOfPort(port) : "";
  if (!owner.empty()) return absl::StrCat(address, " is taken by ", owner);
  return absl::StrCat("cannot listen on ", address, "; is the port taken, or not this machine's address?");
}

}  // namespace causeway::core
