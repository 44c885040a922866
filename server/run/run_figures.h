// The times and figures of rounds, for readers of the status alone. They say nothing that the run needs, so they have a
// lock of their own, beside that of the exchange: a merge adds its figures without waiting for events. Thread-safe.
#pragma once

#include <map>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "server/run/parameters.h"
#include "server/status/outer_gradients.h"
#include "server/status/round_log.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {

constexpr double SecondsOf(int64_t ms) { return static_cast<double>(ms) / 1000.0; }

class RunFigures {
 public:
  explicit RunFigures(const core::Clock* clock) : clock_(*clock) {}

  // Begun: the first chunk of a contribution to the round that makes `version` is here. Arrived: all of it is, which
  // began at `begun_ms` of the monotonic clock. Restored: an earlier life had all of it. Forget: it will not come.
  void Begun(core::FragmentId fragment, core::Version version, const core::SiteId& site);
  void Arrived(core::FragmentId fragment, core::Version version, const core::SiteId& site, int64_t begun_ms);
  void Restored(core::FragmentId fragment, core::Version version, const core::SiteId& site);
  void Forget(core::FragmentId fragment, const core::SiteId& site);

  // `took_s`: since the first of its contributions began.
  void Decided(core::FragmentId fragment, core::Version version, const std::string& reason, int64_t unix_ms,
               double took_s);
  void Merged(const MergedRound& merged);
  // A stream of an update's download has sent everything; it began at `begun_ms` of the monotonic clock.
  void Taken(const v1::DownloadRequest& request, int64_t begun_ms);
  void Forget(const core::SiteId& site);  // the run has forgotten the site

  void AddTo(StatusSnapshot& snapshot) const;

 private:
  const core::Clock& clock_;
  mutable core::Mutex mutex_;  // no other lock is taken under it
  mutable RoundLog log_ ABSL_GUARDED_BY(mutex_);
  RunTimes times_ ABSL_GUARDED_BY(mutex_);
  std::map<core::FragmentId, OuterGradients> gradients_ ABSL_GUARDED_BY(mutex_);
  std::map<core::SiteId, SiteStatus::Cosine> cosines_ ABSL_GUARDED_BY(mutex_);  // cosines of the sites that are known
};

}  // namespace causeway::server
