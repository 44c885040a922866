#include "worker/site/heartbeat.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"

namespace causeway::worker {

void Heartbeat::Start(std::function<int64_t()> lease_ms, std::function<void()> beat) {
  thread_ = core::Thread([this, lease_ms = std::move(lease_ms), beat = std::move(beat)] {
    while (true) {
      const auto interval = std::chrono::milliseconds(std::clamp<int64_t>(lease_ms() / 4, 20, 1000));
      {
        core::MutexLock lock(mutex_);
        if (lock.WaitFor(changed_, interval, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; }))
          return;
      }
      core::Guarded(beat);
    }
  });
}

void Heartbeat::Stop() {
  if (!thread_.joinable()) return;
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

}  // namespace causeway::worker
