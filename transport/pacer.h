// Limits the rate of transfers, so that a site's other traffic has room: determines when the next bytes may go. All
// transfers of a direction share one. At any time t after the first bytes, at most rate · t and one reservation have
// gone. Thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/mutex.h"

namespace causeway::transport {

class Pacer {
 public:
  explicit Pacer(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}  // 0: as fast as it goes

  bool limits() const { return bytes_per_s_ > 0; }
  double bytes_per_s() const { return bytes_per_s_; }

  // The time at which `bytes` may start, in the caller's microseconds; now, if nothing is ahead of them. They count as
  // sent.
  int64_t Reserve(int64_t bytes, int64_t now_us) {
    if (!limits()) return now_us;
    core::MutexLock lock(mutex_);
    const int64_t start_ns = std::max(now_us * 1000, free_at_ns_);
    const double takes_ns = std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_s_);
    free_at_ns_ = start_ns + static_cast<int64_t>(std::min(takes_ns, static_cast<double>(kNeverNs - start_ns)));
    return (start_ns + 999) / 1000;
  }

 private:
  // In nanoseconds, rounded up: many small messages would otherwise take no time at all.
  static constexpr int64_t kNeverNs = int64_t{1} << 62;  // in the next century

  const double bytes_per_s_;
  core::Mutex mutex_;
  int64_t free_at_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::transport
