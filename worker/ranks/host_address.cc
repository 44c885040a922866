#include "worker/ranks/host_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
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

// Those of this host's interfaces that are not loopback, in the kernel's order, IPv4 first.
std::vector<std::string> OwnAddresses() {
  std::vector<std::string> own;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return own;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if (const std::string text = Text(one->ifa_addr); !IsLoopback(text)) own.push_back(text);
    }
  }
  freeifaddrs(all);
  return own;
}

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Found> Lookup(const core::Address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--rendezvous: expected a host that can be looked up, got ",
                                                   address.host, ": ", gai_strerror(error)));
  }
  return Found(found, &freeaddrinfo);
}

// From which this host reaches `other`: "" if it does not.
std::string AddressTowards(const addrinfo& other) {
  const int socket = ::socket(other.ai_family, other.ai_socktype, 0);
  if (socket < 0) return "";
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  const bool known = connect(socket, other.ai_addr, other.ai_addrlen) == 0 &&
                     getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(socket);
  return known ? Text(reinterpret_cast<const sockaddr*>(&address)) : "";
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
  ASSIGN_OR_RETURN(const Found found, Lookup(meeting));
  const std::string towards = AddressTowards(*found);
  if (!towards.empty() && !IsLoopback(towards)) return towards;
  const std::vector<std::string> own = OwnAddresses();
  return own.empty() ? "127.0.0.1" : own.front();
}

absl::StatusOr<std::string> ListenAddress(const std::string& rendezvous) {
  if (rendezvous.starts_with("unix:")) return rendezvous;
  ASSIGN_OR_RETURN(const core::Address given, core::ParseAddress("--rendezvous", rendezvous));
  if (given.IsLoopback()) return given.Text();
  ASSIGN_OR_RETURN(const Found found, Lookup(given));
  const std::vector<std::string> own = OwnAddresses();
  bool all_loopback = true;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const std::string address = Text(one->ai_addr);
    if (absl::c_linear_search(own, address)) return core::Address{address, given.port}.Text();
    all_loopback = all_loopback && IsLoopback(address);
  }
  // Debian's /etc/hosts maps the host's own name to 127.0.1.1.
  if (all_loopback && !own.empty()) return core::Address{own.front(), given.port}.Text();
  spdlog::info("rank 0: {} is no address of this host: listens at all of them", given.host);
  return core::Address{"0.0.0.0", given.port}.Text();
}

}  // namespace causeway::worker
