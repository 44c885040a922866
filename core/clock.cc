#include "core/clock.h"

#include <ctime>

#include "core/simulation.h"

namespace causeway::core {
namespace {

class MachineClock final : public Clock {
 public:
  TimePoint Now() const override {
    Simulation* const simulation = TheSimulation();
    return simulation == nullptr ? std::chrono::steady_clock::now() : simulation->Now();
  }
  CalendarTime Calendar() const override {
    Simulation* const simulation = TheSimulation();
    return simulation == nullptr ? std::chrono::system_clock::now() : simulation->Calendar();
  }
};

}  // namespace

const Clock& SystemClock() noexcept {
  static const auto* const clock = new MachineClock;  // threads may outlive main
  return *clock;
}

int64_t ThreadCpuNs() {
  timespec spent = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return int64_t{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

}  // namespace causeway::core
