// Time that stands still but for what a test adds. Thread-safe.
#pragma once

#include <atomic>

#include "core/clock.h"

namespace causeway::core {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t ms = 0) : ms_(ms) {}

  TimePoint Now() const override { return TimePoint(std::chrono::milliseconds(ms_)); }
  CalendarTime Calendar() const override { return CalendarTime(std::chrono::milliseconds(ms_)); }

  void Advance(int64_t ms) { ms_ += ms; }
  void Set(int64_t ms) { ms_ = ms; }

 private:
  std::atomic<int64_t> ms_;
};

}  // namespace causeway::core
