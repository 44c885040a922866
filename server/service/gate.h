// What a call passes before the coordinator hears of it: the authorizer, then the limits of its site.
//
//   call's headers, connection ── PeerOf ──► Peer ──► Gate ──► OK, or the status that ends the call
//
// Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>

#include "server/service/authorizer.h"
#include "server/service/site_limits.h"

namespace causeway::server {

struct GateOptions {
  AuthorizerOptions authorizer;
  SiteLimitOptions limits;
  std::function<int64_t()> now_ms;  // monotonic
};

class Gate {
 public:
  // INVALID_ARGUMENT if the file of tokens is missing or wrong.
  static absl::StatusOr<std::unique_ptr<Gate>> Create(GateOptions options);

  // One that trusts everybody, with the limits of core/limits.h.
  static Gate* Open();

  // A message of a control stream that the site holds.
  absl::Status ControlMessage(const Peer& peer, const core::SiteId& site);

  // A bulk stream of the site, for as long as what is returned lives. Nobody's name ("") reads, as causewayctl does.
  absl::StatusOr<SiteLimits::Stream> BulkStream(const Peer& peer, const core::SiteId& site);

  // A question that anyone may ask who is known; `site` is the name that was given, "" for none.
  absl::Status Question(const Peer& peer, const core::SiteId& site);

  // A call that changes what the run does (pause, resume, stop, drain).
  absl::Status Command(const Peer& peer);

 private:
  Gate(std::unique_ptr<Authorizer> authorizer, SiteLimitOptions limits, std::function<int64_t()> now_ms)
      : authorizer_(std::move(authorizer)), now_ms_(now_ms), limits_(limits, std::move(now_ms)) {}
  absl::Status Logged(const Peer& peer, absl::Status status);

  const std::unique_ptr<Authorizer> authorizer_;
  const std::function<int64_t()> now_ms_;
  SiteLimits limits_;
  core::Mutex mutex_;
  TokenBucket logged_refusals_ ABSL_GUARDED_BY(mutex_){core::kLoggedRefusalsPerSecond, core::kLoggedRefusalsBurst};
};

// The certificate and the token of a call.
Peer PeerOf(const grpc::ServerContextBase& context);

}  // namespace causeway::server
