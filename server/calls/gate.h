// The checks that a call passes before it reaches the coordinator: the authorizer, then the limits of its site.
//
//   call's headers, connection ── PeerOf ──► Peer ──► Arrive ──► first message ──► ControlMessage, BulkStream, … ──► OK
//                                                  (or the status that ends the call)
//
// Nothing of a call is read before Arrive has let it in. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/mutex.h"
#include "server/calls/authorizer.h"

namespace causeway::server {

// Limits on one site's use of the coordinator (core/limits.h has the figures): a site that exceeds them is refused with
// RESOURCE_EXHAUSTED, and the others are unaffected.
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

// An open call, which the gate can end: one that does not identify itself, or whose token is withdrawn.
class Call {
 public:
  explicit Call(Peer peer) : peer_(std::move(peer)) {}
  virtual ~Call() = default;
  virtual void End(const absl::Status& status) = 0;  // called from any thread; the call may have ended already
  virtual void Beat() {}  // says that the coordinator is there, where the caller waits and wants to hear it
  void Spoke() { silent_since_ms_ = kSpoke; }  // its first message has arrived

 protected:
  const Peer peer_;

 private:
  friend class Gate;
  static constexpr int64_t kSpoke = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> silent_since_ms_ = kSpoke;
};

// The rate at which refused commands are journaled: at most 1,440 rows a day of the 100,000 that are kept.
inline constexpr double kRecordedRefusalsPerSecond = 1.0 / 60;
inline constexpr double kRecordedRefusalsBurst = 100;

struct GateOptions {
  AuthorizerOptions authorizer;
  SiteLimitOptions limits;
  const core::Clock* clock = &core::SystemClock();
};

class Gate {
 public:
  // INVALID_ARGUMENT if a file of the authorizer's is missing or wrong.
  static absl::StatusOr<std::unique_ptr<Gate>> Create(GateOptions options);

  // A gate that trusts every peer, with the limits of core/limits.h.
  static Gate* Open();

  // Admits a call by its headers; it is open for as long as it lives. Tick ends it if its first message takes longer
  // than core::kFirstMessageMs, or once its token or certificate is withdrawn; and has the others say every
  // core::kBeatMs that the coordinator is there (Call::Beat).
  absl::Status Arrive(const Peer& peer, const std::shared_ptr<Call>& call);
  void Tick();

  // An identified site opens a control stream: refused while the site owes manifest bytes.
  absl::Status ControlStream(const Peer& peer);
  // A message's bytes, before parsing, from an identified peer; for other peers ControlMessage counts them.
  absl::Status ControlBytes(const Peer& peer, int64_t bytes);
  // A message, with its bytes, of a control stream that the site holds.
  absl::Status ControlMessage(const Peer& peer, const core::SiteId& site, int64_t bytes, bool has_manifest);

  // Opens a bulk stream of the site, for as long as the returned value lives. An empty name ("") may read, as
  // causewayctl does.
  absl::StatusOr<SiteLimits::Stream> BulkStream(const Peer& peer, const core::SiteId& site);

  // A query open to every known peer; `site` is the name given, "" for none.
  absl::Status Question(const Peer& peer, const core::SiteId& site);

  // A call that changes what the run does (pause, resume, stop, drain): `call` is its row in CallTable.
  absl::Status Command(const Peer& peer, std::string_view call);

  // Who: the peer's identity, as far as it is established. TakeRecordOfRefusal: whether a refused command may be
  // recorded: a known name that repeats commands endlessly must not push others' records out of the log.
  std::optional<Identity> Who(const Peer& peer);
  bool TakeRecordOfRefusal();

 private:
  Gate(std::unique_ptr<Authorizer> authorizer, SiteLimitOptions limits, const core::Clock* clock)
      : authorizer_(std::move(authorizer)), clock_(clock), limits_(limits, clock) {}
  std::vector<std::shared_ptr<Call>> Calls();
  absl::Status Known(const Peer& peer, const core::SiteId& site);
  absl::Status Logged(const Peer& peer, absl::Status status);

  const std::unique_ptr<Authorizer> authorizer_;
  const core::Clock* const clock_;
  SiteLimits limits_;
  int64_t beat_ms_ = 0;  // time of the last beat; used by the ticking thread alone
  core::Mutex mutex_;
  std::vector<std::weak_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);  // those that live, and some that are gone
  // The authorizer's revision under which all open calls were let in.
  uint64_t checked_revision_ ABSL_GUARDED_BY(mutex_) = 0;
  TokenBucket logged_refusals_ ABSL_GUARDED_BY(mutex_){core::kLoggedRefusalsPerSecond, core::kLoggedRefusalsBurst};
  TokenBucket recorded_refusals_ ABSL_GUARDED_BY(mutex_){kRecordedRefusalsPerSecond, kRecordedRefusalsBurst};
};

}  // namespace causeway::server
