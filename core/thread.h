// A thread of the program, or one that a simulation runs in its place (core/simulation.h).
//
// As std::thread: whoever started it joins it before the object goes.
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
