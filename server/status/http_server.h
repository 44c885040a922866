// The coordinator's HTTP port: read-only. docs/operating.md has the endpoints.
//
//   GET /  the page     /status  /timeline  /metrics     /events  both, pushed     /healthz  /readyz  for probes
//
//   connection ─► a thread of the pool ─► StatusBoard (rendered once, shared) ─► socket
//
// cpp-httplib serves each connection on a thread of its pool, so everything that holds a thread is bounded: streams of
// /events by their number, beyond which a page polls; everything else by the budget of its .cc, and by send
// buffers that hold a whole answer, so that a client which never reads holds no thread. Ranges are not served.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/status/status_board.h"

namespace causeway::server {

// The Host that a request may name. A page from elsewhere whose name is made to lead here (DNS rebinding) could read in
// a browser what only this network may; its Host is then its own name, and is refused.
class HttpHosts {
 public:
  // Allows numeric addresses, `localhost`, this machine's name, and `names`, which a proxy or a scraper may use.
  explicit HttpHosts(const std::vector<std::string>& names);

  bool Allows(std::string_view host) const;  // `host` is the header's value, with a port or without

 private:
  std::set<std::string> names_;  // lower case
};

// Concurrent streams of /events. Each costs a thread and, with many sites, 150 kB/s; further pages poll instead.
inline constexpr int kMaxEventStreams = 32;
// Threads for everything else, including connections without a request yet.
inline constexpr int kRequestThreads = 64;
inline constexpr int kProbeThreads = 16;        // threads of a port for probes
inline constexpr int kWaitingConnections = 64;  // connections waiting for a thread; those beyond are answered 503

enum class Serves { kAll, kProbes };  // all endpoints, or /healthz and /readyz

class HttpServer {
 public:
  // Listens on host:port (port 0: any). `board` outlives it. UNAVAILABLE if it cannot listen there. A port for probes
  // has its own threads, so that probes are answered even when the other port's threads are all busy. `hosts`: further
  // names by which requests may call it (HttpHosts).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host, int port, StatusBoard* board,
                                                           Serves serves = Serves::kAll,
                                                           const std::vector<std::string>& hosts = {});
  virtual ~HttpServer() = default;  // ends all streams; requests and answers in progress have up to kStallTime
  virtual int port() const = 0;
};

}  // namespace causeway::server
