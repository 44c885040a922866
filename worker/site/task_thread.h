// A thread that runs tasks in the order posted, for work that the step loop must not wait for. Thread-safe.
#pragma once

#include <deque>
#include <functional>

#include "core/check.h"
#include "core/mutex.h"
#include "core/thread.h"

namespace causeway::worker {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Run(); }) {}

  ~TaskThread() {
    {
      core::MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.Join();
  }

  void Post(std::function<void()> task) {
    core::MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.NotifyAll();
  }

  // Returns when every task posted earlier has run.
  void Finish() {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.empty(); });
  }

 private:
  void Run() {
    while (true) {
      std::function<void()>* task = nullptr;
      {
        core::MutexLock lock(mutex_);
        lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = &tasks_.front();  // stays in place: others only append
      }
      core::Guarded(*task);
      core::MutexLock lock(mutex_);
      tasks_.pop_front();
      changed_.NotifyAll();
    }
  }

  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);  // front is running
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

}  // namespace causeway::worker
