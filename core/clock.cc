#include "core/clock.h"

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

}  // namespace causeway::core
