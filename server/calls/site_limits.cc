#include "server/calls/site_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {
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
