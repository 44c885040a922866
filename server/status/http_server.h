// The coordinator's HTTP port: read-only. docs/operating.md has the endpoints.
//
//   GET /  the page     /status  /timeline  /metrics     /events  both, pushed     /healthz  /readyz  for probes
//
//   connection ─► a thread of the pool ─► StatusBoard (rendered once, shared) ─► socket
//
// cpp-httplib serves each connection on a thread of its pool, so that what may hold a thread is bounded: a stream of
// /events by their number, beyond which a page polls; everything else by the budget of budgeted_http.h, and send
// buffers that a whole answer fits into, so that a reader that never reads holds no thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/status/status_board.h"

namespace causeway::server {

// Streams of /events at once. Each costs a thread and, where sites are many, 150 kB/s; more pages poll instead.
inline constexpr int kMaxEventStreams = 32;
// Threads for everything else: connections that have not asked yet, too.
inline constexpr int kRequestThreads = 64;
inline constexpr int kProbeThreads = 16;        // of a port for probes
inline constexpr int kWaitingConnections = 64;  // for a thread; those beyond are answered 503

enum class Serves { kAll, kProbes };  // all endpoints, or /healthz and /readyz

class HttpServer {
 public:
  // Listens on host:port (port 0: any). `board` outlives it. UNAVAILABLE if it cannot listen there. A port for probes
  // has its own threads, so that they are answered whatever holds those of the other one.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host, int port, StatusBoard* board,
                                                           Serves serves = Serves::kAll);
  virtual ~HttpServer() = default;  // ends all streams; what is being read or sent has up to kStallTime
  virtual int port() const = 0;
};

}  // namespace causeway::server
