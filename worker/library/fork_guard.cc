#include "worker/library/fork_guard.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"

namespace causeway::worker {
namespace {

// An address and a port in one form for both families: IPv4 mapped to IPv6.
using Peer = std::string;

Peer PeerOf(const sockaddr* address) {
  Peer peer;
  if (address->sa_family == AF_INET) {
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(address);
    peer.assign(10, '\0').append(2, '\xff');
    peer.append(reinterpret_cast<const char*>(&ipv4->sin_addr), sizeof ipv4->sin_addr);
    peer.append(reinterpret_cast<const char*>(&ipv4->sin_port), sizeof ipv4->sin_port);
  } else if (address->sa_family == AF_INET6) {
    const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(address);
    peer.assign(reinterpret_cast<const char*>(&ipv6->sin6_addr), sizeof ipv6->sin6_addr);
    peer.append(reinterpret_cast<const char*>(&ipv6->sin6_port), sizeof ipv6->sin6_port);
  }
  return peer;
}

struct Watched {
  core::Mutex mutex;
  std::vector<Peer> peers ABSL_GUARDED_BY(mutex);
  std::vector<int> sockets;  // used by the forking thread, from prepare to the child
};

Watched& Get() {
  static Watched* const watched = new Watched;  // a fork may happen at any time
  return *watched;
}

void ListSockets() {
  Watched& watched = Get();
  core::MutexLock lock(watched.mutex);
  watched.sockets.clear();
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    int descriptor = -1;
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (!absl::SimpleAtoi(entry->d_name, &descriptor)) continue;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    const Peer peer = PeerOf(reinterpret_cast<const sockaddr*>(&address));
    if (!peer.empty() && std::ranges::count(watched.peers, peer) > 0) watched.sockets.push_back(descriptor);
  }
  closedir(folder);
}

void CloseSockets() {
  for (const int descriptor : Get().sockets) close(descriptor);
}

}  // namespace

void CloseInForkedChildren(const std::vector<transport::Address>& addresses) {
  static const bool registered = pthread_atfork(ListSockets, nullptr, CloseSockets) == 0;
  if (!registered) return;
  for (const transport::Address& address : addresses) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &wanted, &found) != 0) continue;
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
    core::MutexLock lock(Get().mutex);
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      const Peer peer = PeerOf(one->ai_addr);
      if (!peer.empty() && std::ranges::count(Get().peers, peer) == 0) Get().peers.push_back(peer);
    }
  }
}

}  // namespace causeway::worker
