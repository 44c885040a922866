// Limits on one site's use of the coordinator (core/limits.h has the figures): a site that exceeds them is refused with
// RESOURCE_EXHAUSTED, and the others are unaffected.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/mutex.h"

namespace causeway::server {

// Lets `per_second` through on average, and `burst` at once. Not thread-safe.
class TokenBucket {
 public:
  TokenBucket(double per_second, double burst) : per_second_(per_second), burst_(burst), level_(burst) {}

  bool Take(int64_t now_ms, double amount = 1);
  // Takes the amount if anything is left, and owes the rest.
  bool TakeOrOwe(int64_t now_ms, double amount);
  bool owes(int64_t now_ms) const { return LevelAt(now_ms) <= 0; }
  double per_second() const { return per_second_; }
  bool full(int64_t now_ms) const { return LevelAt(now_ms) >= burst_; }

 private:
  double LevelAt(int64_t now_ms) const;

  double per_second_;
  double burst_;
  double level_;
  int64_t at_ms_ = 0;
};

struct SiteLimitOptions {
  double control_messages_per_second = core::kControlMessagesPerSecond;
  double control_messages_burst = core::kControlMessagesBurst;
  int64_t control_message_bytes = core::MaxControlBytes(core::kMaxFragments);
  double questions_per_second = core::kQuestionsPerSecond;
  double questions_burst = core::kQuestionsBurst;
  double bulk_streams_per_second = core::kBulkStreamsPerSecond;
  double bulk_streams_burst = core::kBulkStreamsBurst;
  int bulk_streams_at_once = core::MaxBulkStreams(core::kMaxFragments);
  size_t max_sites = 4 * core::kMaxSites;  // without authentication, a peer may use any name
};

// Thread-safe.
class SiteLimits {
 public:
  // A bulk stream that counts for as long as this lives.
  using Stream = std::shared_ptr<void>;

  SiteLimits(SiteLimitOptions options, const core::Clock* clock);  // `clock` outlives it

  // Counts a message and its bytes, unless it is large: a large message must have a manifest, and is counted by
  // TakeLarge.
  absl::Status TakeControlMessage(const core::SiteId& site, int64_t bytes, bool has_manifest);
  bool IsLarge(int64_t bytes) const { return bytes > options_.control_message_bytes; }
  absl::Status TakeLarge(const std::string& identity, int64_t bytes);
  absl::Status CheckOwesNothing(const std::string& identity);  // refuses one that owes for large messages
  absl::StatusOr<Stream> OpenBulkStream(const core::SiteId& site);
  absl::Status TakeQuestion(const std::string& identity);  // a site's name, or another peer's

 private:
  struct Use {
    TokenBucket control_messages;
    TokenBucket control_bytes;
    TokenBucket manifest_bytes;
    TokenBucket questions;
    TokenBucket bulk_streams;
    int open_streams = 0;
  };
  absl::StatusOr<Use*> UseOf(const core::SiteId& site, int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TooManyLarge(const std::string& identity) const;
  void CloseBulkStream(const core::SiteId& site);

  const SiteLimitOptions options_;
  const core::Clock* const clock_;
  core::Mutex mutex_;
  std::map<core::SiteId, Use> sites_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
