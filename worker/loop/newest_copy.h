// A thread that takes copies of the anchors one after the other. If they come faster, only the newest waits.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "core/mutex.h"
#include "worker/site/movers.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

// Thread-safe.
class NewestCopy {
 public:
  explicit NewestCopy(std::function<void(AnchorCopy)> take) : take_(std::move(take)) {}

  void Post(AnchorCopy copy) {
    {
      core::MutexLock lock(mutex_);
      const bool posted = waiting_.has_value();
      waiting_ = std::move(copy);
      if (posted) return;
    }
    tasks_.Post([this] { TakeWaiting(); });
  }

  void Finish() { tasks_.Finish(); }  // returns when the newest has been taken

 private:
  void TakeWaiting() {
    AnchorCopy copy;
    {
      core::MutexLock lock(mutex_);
      copy = *std::exchange(waiting_, std::nullopt);
    }
    take_(std::move(copy));
  }

  const std::function<void(AnchorCopy)> take_;
  core::Mutex mutex_;
  std::optional<AnchorCopy> waiting_ ABSL_GUARDED_BY(mutex_);
  TaskThread tasks_;  // last: its thread calls us
};

}  // namespace causeway::worker
