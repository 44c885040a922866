// The only source of time. All other files use a Clock; a test or a simulator supplies one whose time it controls.
//
//   Now        monotonic: durations, deadlines, leases
//   Calendar   for logs, histories and files that people read, and for deadlines given to gRPC; it may jump
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace causeway::core {

class Clock {
 public:
  using Duration = std::chrono::steady_clock::duration;
  using TimePoint = std::chrono::steady_clock::time_point;
  using CalendarTime = std::chrono::system_clock::time_point;

  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  virtual CalendarTime Calendar() const = 0;

  int64_t NowMs() const { return NowUs() / 1000; }
  int64_t NowUs() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(Now().time_since_epoch()).count();
  }
  int64_t UnixMs() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Calendar().time_since_epoch()).count();
  }
  double SecondsSince(TimePoint begin) const { return std::chrono::duration<double>(Now() - begin).count(); }
};

// The machine's own clock. It is noexcept so that options can default to it: GCC 12 would otherwise warn about
// uninitialized members.
const Clock& SystemClock() noexcept;

}  // namespace causeway::core
