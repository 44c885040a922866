// Reports to the coordinator a few times per lease, on a thread of its own, however busy the other threads are.
#pragma once

#include <functional>

#include "core/membership.h"
#include "core/mutex.h"
#include "core/thread.h"

namespace causeway::worker {

class Heartbeat {
 public:
  ~Heartbeat() { Stop(); }

  // Calls `beat` often enough that one lost report does not cost the lease, which may change. To be called once.
  void Start(std::function<int64_t()> lease_ms, std::function<void()> beat);
  bool started() const { return thread_.joinable(); }
  void Stop();  // `beat` is not called after it

 private:
  core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

}  // namespace causeway::worker
