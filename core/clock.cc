#include "core/clock.h"

namespace causeway::core {
namespace {

class MachineClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  CalendarTime Calendar() const override { return std::chrono::system_clock::now(); }
};

}  // namespace

const Clock& SystemClock() noexcept {
  static const auto* const clock = new MachineClock;  // threads may outlive main
  return *clock;
}

}  // namespace causeway::core
