#include "core/listen_failure.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace causeway::core {

std::string WhyNotListening(const std::string& host, int port) {
  const addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  bool taken = false;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) == 0) {
    const int descriptor = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
    taken = bind(descriptor, found->ai_addr, found->ai_addrlen) != 0 && errno == EADDRINUSE;
    if (descriptor >= 0) close(descriptor);
    freeaddrinfo(found);
  }
  const std::string address = absl::StrCat(host.find(':') == std::string::npos ? host : "[" + host + "]", ":", port);
  if (taken) return absl::StrCat(address, " is taken by another program: ss -ltnp 'sport = :", port, "' names it");
  return absl::StrCat("cannot listen on ", address, "; is it an address of this machine?");
}

}  // namespace causeway::core
