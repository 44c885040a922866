#include "server/service/gate.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/check.h"

namespace causeway::server {
namespace {

int64_t SteadyMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gate>> Gate::Create(GateOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Authorizer> authorizer, Authorizer::Create(std::move(options.authorizer)));
  return std::unique_ptr<Gate>(new Gate(std::move(authorizer), options.limits, std::move(options.now_ms)));
}

Gate* Gate::Open() {
  static Gate* const open = Create({.now_ms = SteadyMs})->release();  // streams may outlive main
  return open;
}

absl::Status Gate::ControlMessage(const Peer& peer, const core::SiteId& site) {
  RETURN_IF_ERROR(authorizer_->CheckSite(peer, site));
  return limits_.TakeControlMessage(site);
}

absl::StatusOr<SiteLimits::Stream> Gate::BulkStream(const Peer& peer, const core::SiteId& site) {
  RETURN_IF_ERROR(Question(peer, site));
  return limits_.OpenBulkStream(site);
}

absl::Status Gate::Question(const Peer& peer, const core::SiteId& site) {
  return site.empty() ? authorizer_->CheckAnyone(peer) : authorizer_->CheckSite(peer, site);
}

Peer PeerOf(const grpc::ServerContextBase& context) {
  Peer peer;
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
