// A mutex and a condition that clang's thread-safety analysis understands, and that a simulation can replace. Not
// absl::Mutex, because ThreadSanitizer reports false races through Debian's build of it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "core/simulation.h"

namespace causeway::core {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (Simulation* const simulation = TheSimulation()) {
      simulation->Yield();
      while (held_) simulation->Block(this, std::nullopt);
      held_ = true;
    } else {
      mutex_.lock();
    }
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if (Simulation* const simulation = TheSimulation()) {
      held_ = false;
      simulation->WakeOne(this);
    } else {
      mutex_.unlock();
    }
  }

 private:
  friend class MutexLock;
  std::mutex mutex_;
  bool held_ = false;  // used in a simulation only
};

// A condition variable: threads wait on it, with a mutex held, until something under that mutex has changed.
class Condition {
 public:
  void NotifyAll() {
    if (Simulation* const simulation = TheSimulation()) {
      simulation->WakeAll(this);
    } else {
      changed_.notify_all();
    }
  }

 private:
  friend class MutexLock;
  std::condition_variable changed_;
};

// Holds a mutex for a scope, and waits with it: the awaited condition is tested under the lock, before and after each
// sleep.
//
//   lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); });
//
// A lambda that reads guarded values is annotated, as a function is: the analysis looks at each separately. It cannot
// know that the lambda's mutex is the one held here, so Wait and WaitFor are not analyzed.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  template <typename Holds>
  void Wait(Condition& changed, Holds holds) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    while (!holds()) WaitOnce(changed, std::nullopt);
  }
  // False: `holds` is still false after that time.
  template <typename Holds>
  bool WaitFor(Condition& changed, std::chrono::nanoseconds timeout, Holds holds) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Clock::TimePoint deadline = SystemClock().Now() + timeout;
    while (!holds()) {
      if (!WaitOnce(changed, deadline)) return holds();
    }
    return true;
  }

 private:
  // False: the deadline came first.
  bool WaitOnce(Condition& changed, std::optional<Clock::TimePoint> deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (Simulation* const simulation = TheSimulation()) {
      mutex_.held_ = false;
      simulation->WakeOne(&mutex_);
      const bool woken = simulation->Block(&changed, deadline);
      mutex_.Lock();
      return woken;
    }
    std::unique_lock<std::mutex> held(mutex_.mutex_, std::adopt_lock);
    bool woken = true;
    if (deadline) {
      woken = changed.changed_.wait_until(held, *deadline) == std::cv_status::no_timeout;
    } else {
      changed.changed_.wait(held);
    }
    held.release();
    return woken;
  }

  Mutex& mutex_;
};

}  // namespace causeway::core
