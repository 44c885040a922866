#include "server/service/gate.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/check.h"

namespace causeway::server {

absl::StatusOr<std::unique_ptr<Gate>> Gate::Create(GateOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Authorizer> authorizer, Authorizer::Create(std::move(options.authorizer)));
  return std::unique_ptr<Gate>(new Gate(std::move(authorizer), options.limits, options.clock));
}

Gate* Gate::Open() {
  static Gate* const open = Create({})->release();  // streams may outlive main
  return open;
}

absl::Status Gate::Logged(const Peer& peer, absl::Status status) {
  if (status.ok()) return status;
  bool log = false;
  {
    core::MutexLock lock(mutex_);
    log = logged_refusals_.Take(clock_->NowMs());
  }
  if (log) spdlog::warn("refused {}: {}", peer.address, std::string(status.message()));
  return status;
}

absl::StatusOr<std::unique_ptr<OpenCalls::Place>> Gate::Arrive(const Peer& peer, std::weak_ptr<Call> call) {
  RETURN_IF_ERROR(Known(peer, /*site=*/""));
  return calls_.Add(std::move(call), peer, clock_->NowMs());
}

void Gate::Tick() {
  for (const OpenCalls::Found& silent : calls_.SilentSince(clock_->NowMs() - core::kFirstMessageMs)) {
    const absl::Status late = absl::DeadlineExceededError(
        absl::StrCat("expected the call's first message within ", core::kFirstMessageMs, " ms, got none"));
    if (silent.call != nullptr) silent.call->End(Logged(silent.peer, late));
  }
  {
    const uint64_t revision = authorizer_->TokensRevision();
    core::MutexLock lock(mutex_);
    if (std::exchange(checked_revision_, revision) == revision) return;
  }
  for (const OpenCalls::Found& open : calls_.All()) {
    const absl::Status known = authorizer_->CheckAnyone(open.peer);
    if (!known.ok() && open.call != nullptr) open.call->End(Logged(open.peer, known));
  }
}

absl::Status Gate::ControlMessage(const Peer& peer, const core::SiteId& site, int64_t bytes, bool has_manifest) {
  absl::Status status = authorizer_->CheckSite(peer, site);
  if (status.ok()) status = limits_.TakeControlMessage(site, bytes, has_manifest);
  return Logged(peer, std::move(status));
}

absl::StatusOr<SiteLimits::Stream> Gate::BulkStream(const Peer& peer, const core::SiteId& site) {
  RETURN_IF_ERROR(Known(peer, site));
  absl::StatusOr<SiteLimits::Stream> stream = limits_.OpenBulkStream(site);
  (void)Logged(peer, stream.status());
  return stream;
}

absl::Status Gate::Question(const Peer& peer, const core::SiteId& site) {
  RETURN_IF_ERROR(Known(peer, site));
  return Logged(peer, limits_.TakeQuestion(!site.empty() ? site : peer.Name()));
}

absl::Status Gate::Known(const Peer& peer, const core::SiteId& site) {
  return Logged(peer, site.empty() ? authorizer_->CheckAnyone(peer) : authorizer_->CheckSite(peer, site));
}

absl::Status Gate::Command(const Peer& peer) { return Logged(peer, authorizer_->CheckOperator(peer)); }

Peer PeerOf(const grpc::ServerContextBase& context) {
  Peer peer{.address = context.peer()};
  if (const auto auth = context.auth_context(); auth != nullptr) {
    for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
      for (const grpc::string_ref& name : auth->FindPropertyValues(property)) {
        std::string text(name.data(), name.size());
        if (std::ranges::count(peer.names, text) == 0) peer.names.push_back(std::move(text));
      }
    }
  }
  const auto header = context.client_metadata().find("authorization");
  if (header == context.client_metadata().end()) return peer;
  constexpr size_t kScheme = sizeof("Bearer ") - 1;
  const std::string value(header->second.data(), header->second.size());
  if (absl::StartsWithIgnoreCase(value, "Bearer ")) peer.token = value.substr(kScheme);
  return peer;
}

}  // namespace causeway::server
