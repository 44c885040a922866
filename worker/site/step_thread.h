// Runs one operation at a time on a thread of its own, while a caller polls it.
//
//   caller   Run(join) ─► kAgain ─► Run(join) ─► kWork ─► … ─► Run(join) ─► kDone
//   thread   body ──────────────────────────────────────────► status
//
// An operation that is unfinished when Run returns goes on; repeating Run waits for it again. Run has one caller at a
// time.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/check.h"
#include "core/mutex.h"
#include "core/thread.h"

namespace causeway::worker {

// A thread that runs tasks in the order posted, for work that the step loop must not wait for. Thread-safe.
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

class StepThread {
 public:
  enum class Turn { kDone, kAgain, kWork };

  // `has_work`: whether the caller has work to do first, so that Run returns kWork.
  explicit StepThread(std::function<bool()> has_work) : has_work_(std::move(has_work)) {}

  // FAILED_PRECONDITION while another operation is unfinished; else the result of `body`, or its state so far.
  absl::StatusOr<Turn> Run(const std::string& operation, std::chrono::nanoseconds timeout,
                           std::function<absl::Status()> body);
  // Waits for the operation in progress, if any, whatever its result. False: timeout.
  bool AwaitIdle(std::chrono::nanoseconds timeout);
  void Look();  // notes that there may be work; any thread, holding no lock that has_work takes

 private:
  const std::function<bool()> has_work_;
  core::Mutex mutex_;
  core::Condition changed_;
  std::string operation_ ABSL_GUARDED_BY(mutex_);                // in progress, or finished and not reported; "": none
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);  // of a finished operation
  TaskThread thread_;
};

}  // namespace causeway::worker
