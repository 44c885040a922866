// The checks that a call passes before it reaches the coordinator: the authorizer, then the limits of its site.
//
//   call's headers, connection ── PeerOf ──► Peer ──► Arrive ──► first message ──► ControlMessage, BulkStream, … ──► OK
//                                                  (or the status that ends the call)
//
// Nothing of a call is read before Arrive has let it in. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "core/clock.h"
#include "server/calls/authorizer.h"
#include "server/calls/open_calls.h"
#include "server/calls/site_limits.h"

namespace causeway::server {

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

  // Admits a call by its headers; the call is open for as long as the returned place lives. Tick ends it if its first
  // message takes longer than core::kFirstMessageMs, or once its token or certificate is withdrawn; and has the others
  // say every core::kBeatMs that the coordinator is there (Call::Beat).
  absl::StatusOr<std::unique_ptr<OpenCalls::Place>> Arrive(const Peer& peer, std::weak_ptr<Call> call);
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

  // A call that changes what the run does (pause, resume, stop, drain): `call` is its row in roles.h.
  absl::Status Command(const Peer& peer, std::string_view call);

  // Who: the peer's identity, as far as it is established. TakeRecordOfRefusal: whether a refused command may be
  // recorded: a known name that repeats commands endlessly must not push others' records out of the log.
  std::optional<Identity> Who(const Peer& peer);
  bool TakeRecordOfRefusal();

 private:
  Gate(std::unique_ptr<Authorizer> authorizer, SiteLimitOptions limits, const core::Clock* clock)
      : authorizer_(std::move(authorizer)), clock_(clock), limits_(limits, clock) {}
  void Beat();
  absl::Status Known(const Peer& peer, const core::SiteId& site);
  absl::Status Logged(const Peer& peer, absl::Status status);

  const std::unique_ptr<Authorizer> authorizer_;
  const core::Clock* const clock_;
  SiteLimits limits_;
  OpenCalls calls_;
  int64_t beat_ms_ = 0;  // time of the last beat; used by the ticking thread alone
  core::Mutex mutex_;
  // The authorizer's revision under which all open calls were let in.
  uint64_t checked_revision_ ABSL_GUARDED_BY(mutex_) = 0;
  TokenBucket logged_refusals_ ABSL_GUARDED_BY(mutex_){core::kLoggedRefusalsPerSecond, core::kLoggedRefusalsBurst};
  TokenBucket recorded_refusals_ ABSL_GUARDED_BY(mutex_){kRecordedRefusalsPerSecond, kRecordedRefusalsBurst};
};

}  // namespace causeway::server
