// A thread that runs tasks in the order they come: what the step loop must not wait for. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

#include "core/check.h"
#include "core/mutex.h"

namespace causeway::worker {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Run(); }) {}

  ~TaskThread() {
    {
      core::MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void Post(std::function<void()> task) {
    core::MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  // Returns when everything posted before has run.
  void Finish() {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this] { return tasks_.empty(); });
  }

 private:
  void Run() {
    while (true) {
      std::function<void()>* task = nullptr;
      {
        core::MutexLock lock(mutex_);
        lock.Wait(changed_, [this] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = &tasks_.front();  // stays in place: others only append
      }
      core::Guarded(*task);
      core::MutexLock lock(mutex_);
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  core::Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);  // front is running
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace causeway::worker
