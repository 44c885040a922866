// Measures how long the disk takes to make a commit durable. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace causeway::server {

struct SyncFigures {
  uint64_t count = 0;    // completed
  double seconds = 0;    // sum over all of them
  double slowest_s = 0;  // slowest in the last 30 to 60 s; one in progress counts with its time so far
};

class SyncMeter {
 public:
  explicit SyncMeter(const core::Clock* clock = &core::SystemClock()) : clock_(*clock) {}

  // Runs `sync`, which flushes to the disk, and returns its status. One call at a time.
  absl::Status Time(const std::function<absl::Status()>& sync);

  SyncFigures figures() const;

 private:
  void Turn(core::Clock::TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const core::Clock& clock_;
  mutable core::Mutex mutex_;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  double seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<core::Clock::TimePoint> begun_ ABSL_GUARDED_BY(mutex_);
  mutable core::Clock::TimePoint turned_ ABSL_GUARDED_BY(mutex_);
  mutable std::array<double, 2> slowest_s_
      ABSL_GUARDED_BY(mutex_) = {};  // since the last turn, and in the 30 s before it
};

}  // namespace causeway::server
