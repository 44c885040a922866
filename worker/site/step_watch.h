// Detects that a site's training stands still, so that its lease depends on its steps and not on the life of its
// process.
//
//   step thread   Enter ─► (in a call of the site: it waits for what is known) ─► Return ─► the program trains
//   any thread    Waits("evaluation") … Waits("")        HasRanks({…, "rank 3 of 8 (host) ended"})
//   heartbeat     Look ─► a report ─► … ─► one report that says why ─► silence, until the next step
//
// Training stands still when the program has not come back for `timeout` and is in no known wait, or when one of
// the ranks says so. The first step after the site has joined may take ten times as long: programs compile in it.
// Thread-safe.
#pragma once

#include <chrono>
#include <string>

#include "core/clock.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/progress.h"

namespace causeway::worker {

class StepWatch {
 public:
  // The heartbeat's next move.
  enum class Say { kGoesOn, kStandsStill, kNothing };

  StepWatch(double timeout_s, const core::Clock& clock) : timeout_s_(timeout_s), clock_(clock) {}

  void SetTimeout(double timeout_s);
  void Enter();
  void Return(bool stepped);
  void Waits(const std::string& what);             // "": no more
  void HasRanks(const core::RankProgress& ranks);  // with the reason why they stand still, if one knows it

  // To be called once per heartbeat: fills in the report on the ranks. Returns kStandsStill once, and kNothing from
  // then on.
  Say Look(core::RankProgress& ranks);

 private:
  std::string WhyStill() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  core::Mutex mutex_;
  double timeout_s_ ABSL_GUARDED_BY(mutex_);
  const core::Clock& clock_;
  bool inside_ ABSL_GUARDED_BY(mutex_) = true;  // also before the site has joined
  bool first_ ABSL_GUARDED_BY(mutex_) = true;
  core::Clock::TimePoint since_ ABSL_GUARDED_BY(mutex_);
  std::string waits_ ABSL_GUARDED_BY(mutex_);
  core::RankProgress ranks_ ABSL_GUARDED_BY(mutex_);
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
};

// Enter and Return around a call of the site.
class InSite {
 public:
  InSite(StepWatch& watch, bool steps) : watch_(watch), steps_(steps) { watch_.Enter(); }
  ~InSite() { watch_.Return(steps_); }

 private:
  StepWatch& watch_;
  const bool steps_;
};

}  // namespace causeway::worker
