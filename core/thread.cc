#include "core/thread.h"

#include "core/check.h"
#include "core/simulation.h"

namespace causeway::core {

Thread::Thread(std::function<void()> body) {
  Simulation* const simulation = TheSimulation();
  if (simulation == nullptr) {
    thread_ = std::thread(std::move(body));
    return;
  }
  simulated_ = std::make_shared<Simulated>();
  simulation->Start([simulation, state = simulated_, body = std::move(body)] {
    state->thread = simulation->CurrentThread();
    body();
    state->done = true;
    simulation->WakeAll(state.get());
  });
}

void Thread::Join() {
  CHECK(joinable());
  if (simulated_ == nullptr) return thread_.join();
  while (!simulated_->done) TheSimulation()->Block(simulated_.get(), std::nullopt);
  simulated_.reset();
}

bool Thread::IsCurrent() const {
  if (simulated_ != nullptr) return simulated_->thread == TheSimulation()->CurrentThread();
  return thread_.get_id() == std::this_thread::get_id();
}

void SleepUntil(Clock::TimePoint time) {
  Simulation* const simulation = TheSimulation();
  if (simulation == nullptr) return std::this_thread::sleep_until(time);
  const char nothing = 0;  // no thread wakes it
  simulation->Block(&nothing, time);
}

}  // namespace causeway::core
