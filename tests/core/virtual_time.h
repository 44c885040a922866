// A simulated machine for one thread: time passes only where a test sleeps or waits, and then to that deadline at once.
//
//   VirtualTime time;  ──►  core::SystemClock, SleepUntil, MutexLock::WaitFor of this thread, until `time` goes
//
// No other thread may run meanwhile. Programs of several threads: tests/sim.
#pragma once

#include <algorithm>

#include "core/check.h"
#include "core/simulation.h"

namespace causeway::core {

class VirtualTime : public Simulation {
 public:
  VirtualTime() { SetSimulation(this); }
  ~VirtualTime() override { SetSimulation(nullptr); }

  Clock::TimePoint Now() override { return now_; }
  Clock::CalendarTime Calendar() override { return {}; }
  uint64_t Random() override { return 0; }

  void Start(std::function<void()>) override { CHECK(false); }
  const void* CurrentThread() override { return this; }

  bool Block(const void*, std::optional<Clock::TimePoint> deadline) override {
    CHECK(deadline.has_value());
    now_ = std::max(now_, *deadline);
    return false;
  }
  void WakeOne(const void*) override {}
  void WakeAll(const void*) override {}
  void Yield() override {}

 private:
  Clock::TimePoint now_{std::chrono::seconds(1000)};
};

}  // namespace causeway::core
