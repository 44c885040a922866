#include "server/calls/gate.h"

#include <spdlog/spdlog.h>

#include <algorithm>
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

absl::Status Gate::Arrive(const Peer& peer, const std::shared_ptr<Call>& call) {
  RETURN_IF_ERROR(Logged(peer, authorizer_->CheckArrival(peer)));
  if (call == nullptr) return absl::OkStatus();
  call->silent_since_ms_ = clock_->NowMs();
  core::MutexLock lock(mutex_);
  calls_.push_back(call);
  return absl::OkStatus();
}

// Its last owner may release a call meanwhile: the caller releases it without the mutex.
std::vector<std::shared_ptr<Call>> Gate::Calls() {
  std::vector<std::shared_ptr<Call>> open;
  core::MutexLock lock(mutex_);
  std::erase_if(calls_, [&open](const std::weak_ptr<Call>& one) {
    if (auto call = one.lock()) open.push_back(std::move(call));
    return one.expired();
  });
  return open;
}

void Gate::Tick() {
  const std::vector<std::shared_ptr<Call>> open = Calls();
  const int64_t now_ms = clock_->NowMs();
  for (const auto& call : open) {
    if (call->silent_since_ms_ > now_ms - core::kFirstMessageMs) continue;
    call->End(Logged(call->peer_, absl::DeadlineExceededError(absl::StrCat("expected the call's first message within ",
                                                                           core::kFirstMessageMs, " ms, got none"))));
  }
  if (now_ms - beat_ms_ >= core::kBeatMs) {
    beat_ms_ = now_ms;
    for (const auto& call : open) call->Beat();
  }
  {
    const uint64_t revision = authorizer_->Revision();
    core::MutexLock lock(mutex_);
    if (std::exchange(checked_revision_, revision) == revision) return;
  }
  for (const auto& call : Calls()) {
    const absl::Status known = authorizer_->CheckArrival(call->peer_);
    if (!known.ok()) call->End(Logged(call->peer_, known));
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

namespace {

constexpr double kMsPerS = 1000;

}  // namespace

double TokenBucket::LevelAt(int64_t now_ms) const {
  return std::min(burst_, level_ + per_second_ * static_cast<double>(now_ms - at_ms_) / kMsPerS);
}

bool TokenBucket::Take(int64_t now_ms, double amount) {
  level_ = LevelAt(now_ms);
  at_ms_ = now_ms;
  if (level_ < amount) return false;
  level_ -= amount;
  return true;
}

bool TokenBucket::TakeOrOwe(int64_t now_ms, double amount) {
  if (owes(now_ms)) return false;
  level_ = LevelAt(now_ms) - amount;
  at_ms_ = now_ms;
  return true;
}

SiteLimits::SiteLimits(SiteLimitOptions options, const core::Clock* clock) : options_(options), clock_(clock) {}

// A site that has been quiet until its buckets are full again is forgotten when there is no room: nothing is lost.
absl::StatusOr<SiteLimits::Use*> SiteLimits::UseOf(const core::SiteId& site, int64_t now_ms) {
  const auto known = sites_.find(site);
  if (known != sites_.end()) return &known->second;
  if (sites_.size() >= options_.max_sites) {
    std::erase_if(sites_, [now_ms](const auto& entry) {
      const Use& use = entry.second;
      return use.open_streams == 0 && use.control_messages.full(now_ms) && use.control_bytes.full(now_ms) &&
             use.manifest_bytes.full(now_ms) && use.questions.full(now_ms) && use.bulk_streams.full(now_ms);
    });
  }
  if (sites_.size() >= options_.max_sites) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", options_.max_sites, " names have spoken lately; try again later"));
  }
  const auto message = static_cast<double>(options_.control_message_bytes);
  const Use fresh{{options_.control_messages_per_second, options_.control_messages_burst},
                  {core::kControlBytesPerMessage * message, core::kControlBytesBurst * message},
                  {core::kManifestBytesPerSecond, core::kManifestBytesBurst},
                  {options_.questions_per_second, options_.questions_burst},
                  {options_.bulk_streams_per_second, options_.bulk_streams_burst}};
  return &sites_.emplace(site, fresh).first->second;
}

absl::Status SiteLimits::TakeControlMessage(const core::SiteId& site, int64_t bytes, bool has_manifest) {
  if (!has_manifest && IsLarge(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("site ", site, " sends a control message of ", bytes,
                                                     " bytes: expected at most ", options_.control_message_bytes));
  }
  const int64_t now_ms = clock_->NowMs();
  core::MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Use* const use, UseOf(site, now_ms));
  if (!use->control_messages.Take(now_ms)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "site ", site, " sends more than ", options_.control_messages_per_second, " control messages a second"));
  }
  if (IsLarge(bytes) || use->control_bytes.Take(now_ms, static_cast<double>(bytes))) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("site ", site, " sends more than ",
                                                   static_cast<int64_t>(use->control_bytes.per_second()),
                                                   " bytes of control messages a second"));
}

absl::Status SiteLimits::TakeLarge(const std::string& identity, int64_t bytes) {
  const int64_t now_ms = clock_->NowMs();
  core::MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Use* const use, UseOf(identity, now_ms));
  if (use->manifest_bytes.TakeOrOwe(now_ms, static_cast<double>(bytes))) return absl::OkStatus();
  return TooManyLarge(identity);
}

absl::Status SiteLimits::CheckOwesNothing(const std::string& identity) {
  const int64_t now_ms = clock_->NowMs();
  core::MutexLock lock(mutex_);
  const auto known = sites_.find(identity);
  if (known == sites_.end() || !known->second.manifest_bytes.owes(now_ms)) return absl::OkStatus();
  return TooManyLarge(identity);
}

absl::Status SiteLimits::TooManyLarge(const std::string& identity) const {
  return absl::ResourceExhaustedError(absl::StrCat("site ", identity, " sends more than ",
                                                   static_cast<int64_t>(core::kManifestBytesPerSecond),
                                                   " bytes of manifests a second"));
}

absl::Status SiteLimits::TakeQuestion(const std::string& identity) {
  const int64_t now_ms = clock_->NowMs();
  core::MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Use* const use, UseOf(identity, now_ms));
  if (use->questions.Take(now_ms)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(identity, " asks more than ", options_.questions_per_second, " questions a second"));
}

absl::StatusOr<SiteLimits::Stream> SiteLimits::OpenBulkStream(const core::SiteId& site) {
  const int64_t now_ms = clock_->NowMs();
  core::MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Use* const use, UseOf(site, now_ms));
  if (!use->bulk_streams.Take(now_ms)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("site ", site, " opens more than ", options_.bulk_streams_per_second, " bulk streams a second"));
  }
  if (use->open_streams >= options_.bulk_streams_at_once) {
    return absl::ResourceExhaustedError(
        absl::StrCat("site ", site, " has ", use->open_streams, " bulk streams open, as many as it may"));
  }
  ++use->open_streams;
  return Stream(this, [site](void* limits) { static_cast<SiteLimits*>(limits)->CloseBulkStream(site); });
}

void SiteLimits::CloseBulkStream(const core::SiteId& site) {
  core::MutexLock lock(mutex_);
  --sites_.at(site).open_streams;
}

}  // namespace causeway::server
