#include "server/calls/gate.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
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
  RETURN_IF_ERROR(Logged(peer, authorizer_->CheckArrival(peer)));
  return calls_.Add(std::move(call), peer, clock_->NowMs());
}

void Gate::Tick() {
  for (const OpenCalls::Found& silent : calls_.SilentSince(clock_->NowMs() - core::kFirstMessageMs)) {
    const absl::Status late = absl::DeadlineExceededError(
        absl::StrCat("expected the call's first message within ", core::kFirstMessageMs, " ms, got none"));
    if (silent.call != nullptr) silent.call->End(Logged(silent.peer, late));
  }
  Beat();
  {
    const uint64_t revision = authorizer_->Revision();
    core::MutexLock lock(mutex_);
    if (std::exchange(checked_revision_, revision) == revision) return;
  }
  for (const OpenCalls::Found& open : calls_.All()) {
    const absl::Status known = authorizer_->CheckArrival(open.peer);
    if (!known.ok() && open.call != nullptr) open.call->End(Logged(open.peer, known));
  }
}

void Gate::Beat() {
  if (clock_->NowMs() - beat_ms_ < core::kBeatMs) return;
  beat_ms_ = clock_->NowMs();
  for (const OpenCalls::Found& open : calls_.All()) {
    if (open.call != nullptr) open.call->Beat();
  }
}

absl::Status Gate::ControlStream(const Peer& peer) {
  const std::optional<Identity> who = Who(peer);
  return who ? Logged(peer, limits_.CheckOwesNothing(who->name)) : absl::OkStatus();
}

absl::Status Gate::ControlBytes(const Peer& peer, int64_t bytes) {
  const std::optional<Identity> who = limits_.IsLarge(bytes) ? Who(peer) : std::nullopt;
  return who ? Logged(peer, limits_.TakeLarge(who->name, bytes)) : absl::OkStatus();
}

absl::Status Gate::ControlMessage(const Peer& peer, const core::SiteId& site, int64_t bytes, bool has_manifest) {
  absl::Status status = authorizer_->CheckSite(peer, site);
  if (status.ok()) status = limits_.TakeControlMessage(site, bytes, has_manifest);
  if (status.ok() && limits_.IsLarge(bytes) && !Who(peer)) status = limits_.TakeLarge(site, bytes);
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
  return Logged(peer, site.empty() ? authorizer_->Identify(peer).status() : authorizer_->CheckSite(peer, site));
}

absl::Status Gate::Command(const Peer& peer, std::string_view call) {
  return Logged(peer, authorizer_->CheckCall(peer, call));
}

std::optional<Identity> Gate::Who(const Peer& peer) { return authorizer_->Identify(peer).value_or(std::nullopt); }

bool Gate::TakeRecordOfRefusal() {
  core::MutexLock lock(mutex_);
  return recorded_refusals_.Take(clock_->NowMs());
}

}  // namespace causeway::server
