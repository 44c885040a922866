#include "worker/ranks/host_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/address.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

std::string Text(const sockaddr* address) {
  char text[NI_MAXHOST] = "";
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// The first address of this host that others may be able to reach; Debian's /etc/hosts maps the host's own name to
// 127.0.1.1.
std::string FirstAddress() {
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if (const std::string text = Text(one->ifa_addr); !IsLoopback(text)) found = text;
  }
  freeifaddrs(all);
  return found;
}

// The addresses of `host`, as numbers.
absl::StatusOr<std::vector<std::string>> Lookup(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rendezvous: expected a host that can be looked up, got ", host, ": ", gai_strerror(error)));
  }
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) addresses.push_back(Text(one->ai_addr));
  freeaddrinfo(found);
  return addresses;
}

bool IsOwn(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool own = false;
  for (const ifaddrs* one = all; one != nullptr && !own; one = one->ifa_next) {
    const bool ip =
        one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6);
    own = ip && Text(one->ifa_addr) == address;
  }
  freeifaddrs(all);
  return own;
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

absl::StatusOr<std::string> OwnAddress(const std::string& rendezvous) {
  if (rendezvous.starts_with("unix:")) return "127.0.0.1";
  ASSIGN_OR_RETURN(const core::Address meeting, core::ParseAddress("--rendezvous", rendezvous));
  if (meeting.IsLoopback()) return "127.0.0.1";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(meeting.host.c_str(), std::to_string(meeting.port).c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--rendezvous: expected a host that can be looked up, got ",
                                                   rendezvous, ": ", gai_strerror(error)));
  }
  std::string own;
  const int socket = ::socket(found->ai_family, SOCK_DGRAM, 0);
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (socket >= 0 && connect(socket, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    own = Text(reinterpret_cast<const sockaddr*>(&address));
  }
  if (socket >= 0) close(socket);
  freeaddrinfo(found);
  if (own.empty() || IsLoopback(own)) own = FirstAddress();
  return own.empty() ? "127.0.0.1" : own;
}

absl::StatusOr<std::string> ListenAddress(const std::string& rendezvous) {
  if (rendezvous.starts_with("unix:")) return rendezvous;
  ASSIGN_OR_RETURN(const core::Address given, core::ParseAddress("--rendezvous", rendezvous));
  if (given.IsLoopback()) return given.Text();
  ASSIGN_OR_RETURN(const std::vector<std::string> addresses, Lookup(given.host));
  for (const std::string& address : addresses) {
    if (!IsLoopback(address) && IsOwn(address)) return core::Address{address, given.port}.Text();
  }
  const bool loopback = std::ranges::all_of(addresses, IsLoopback);
  const std::string first = FirstAddress();
  if (loopback && !first.empty()) return core::Address{first, given.port}.Text();
  spdlog::info("rank 0: {} is no address of this host: listens at all of them", given.host);
  return core::Address{"0.0.0.0", given.port}.Text();
}

}  // namespace causeway::worker
