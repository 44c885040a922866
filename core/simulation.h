// Replaces the machine's threads, locks, time and random numbers where a whole service is simulated in one thread.
//
//   core::Thread, Mutex, Condition, SystemClock, DeviceRandom ──► Simulation, if there is one; else the machine
//
// A simulation runs the threads of all its processes one at a time and switches between them only inside these calls,
// so that a seed decides everything that happens (tests/sim). Every other program has none: each of the calls then
// costs one additional test of a pointer. Decision: docs/decisions/0018-simulated-machine.md.
#pragma once

#include <functional>
#include <optional>

#include "core/clock.h"

namespace causeway::core {

class Simulation {
 public:
  virtual ~Simulation() = default;

  virtual Clock::TimePoint Now() = 0;
  virtual Clock::CalendarTime Calendar() = 0;
  virtual uint64_t Random() = 0;

  // Runs `body` on a thread of the calling thread's process.
  virtual void Start(std::function<void()> body) = 0;
  virtual const void* CurrentThread() = 0;  // differs from that of every other thread

  // Blocks the calling thread until another one wakes `on`, or until the deadline; false: the deadline came first.
  virtual bool Block(const void* on, std::optional<Clock::TimePoint> deadline) = 0;
  virtual void WakeOne(const void* on) = 0;
  virtual void WakeAll(const void* on) = 0;
  virtual void Yield() = 0;  // another thread may run now
};

namespace internal {
inline Simulation* simulation = nullptr;
}

inline Simulation* TheSimulation() { return internal::simulation; }

// Sets the simulation for the life of the program. REQUIRES: no thread was started yet.
inline void SetSimulation(Simulation* simulation) { internal::simulation = simulation; }

}  // namespace causeway::core
