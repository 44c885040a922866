// A std::mutex that clang's thread-safety analysis understands. Not absl::Mutex, because ThreadSanitizer sees false
// races through the build of it that Debian ships.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace causeway::core {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for a scope, and waits with it: the condition is tested under the lock, before and after each sleep.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;

  template <typename Condition>
  void Wait(std::condition_variable& changed, Condition condition) {
    changed.wait(lock_, condition);
  }
  template <typename Condition>
  bool WaitFor(std::condition_variable& changed, std::chrono::nanoseconds timeout, Condition condition) {
    return changed.wait_for(lock_, timeout, condition);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace causeway::core
