// Holds transfers to a rate, so that a site's other traffic has room: says when the next bytes may go. All transfers of
// a direction share one. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/mutex.h"

namespace causeway::transport {

class Pacer {
 public:
  explicit Pacer(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}  // 0: as fast as it goes

  bool limits() const { return bytes_per_s_ > 0; }
  double bytes_per_s() const { return bytes_per_s_; }

  // When so many bytes may start, in the caller's microseconds; now, if nothing is before them. They count as sent.
  int64_t Reserve(int64_t bytes, int64_t now_us) {
    if (!limits()) return now_us;
    core::MutexLock lock(mutex_);
    const int64_t start_us = std::max(now_us, free_at_us_);
    free_at_us_ = start_us + static_cast<int64_t>(static_cast<double>(bytes) * 1e6 / bytes_per_s_);
    return start_us;
  }

 private:
  const double bytes_per_s_;
  core::Mutex mutex_;
  int64_t free_at_us_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::transport
