// Time that stands still but for what a test adds; its calendar may jump beside it. Thread-safe.
#pragma once

#include <atomic>

#include "core/clock.h"

namespace causeway::core {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t ms = 0) : ms_(ms) {}

  TimePoint Now() const override { return TimePoint(std::chrono::milliseconds(ms_)); }
  CalendarTime Calendar() const override { return CalendarTime(std::chrono::milliseconds(ms_ + jumped_ms_)); }

  void Advance(int64_t ms) { ms_ += ms; }
  void Set(int64_t ms) { ms_ = ms; }
  void JumpCalendar(int64_t ms) { jumped_ms_ += ms; }

 private:
  std::atomic<int64_t> ms_;
  std::atomic<int64_t> jumped_ms_ = 0;
};

}  // namespace causeway::core
