// Runs one operation at a time on a thread of its own, while a caller polls it.
//
//   caller   Run(join) ─► kAgain ─► Run(join) ─► kWork ─► … ─► Run(join) ─► kDone
//   thread   body ──────────────────────────────────────────► status
//
// An operation that is unfinished when Run returns goes on; repeating Run waits for it again. Run has one caller at a
// time.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "worker/site/task_thread.h"

namespace causeway::worker {

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
