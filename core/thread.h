// A thread of the program, or one that a simulation runs instead (core/simulation.h).
//
// As with std::thread, the starter must join it before destroying the object.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "core/clock.h"

namespace causeway::core {

class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body);

  bool joinable() const { return thread_.joinable() || simulated_ != nullptr; }
  void Join();
  bool IsCurrent() const;  // whether the caller runs on it

 private:
  struct Simulated {
    const void* thread = nullptr;
    bool done = false;
  };

  std::thread thread_;
  std::shared_ptr<Simulated> simulated_;
};

void SleepUntil(Clock::TimePoint time);

}  // namespace causeway::core
