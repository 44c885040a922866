// One operation at a time on a thread of its own, and a caller that looks in on it.
//
//   caller   Run(join) ─► kAgain ─► Run(join) ─► kWork ─► … ─► Run(join) ─► kDone
//   thread   body ──────────────────────────────────────────► status
//
// An operation that is not through when Run returns goes on; the same Run takes it up again. Run has one caller at a
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

  // `has_work`: whether the caller has to do something first, so that Run returns kWork.
  explicit StepThread(std::function<bool()> has_work) : has_work_(std::move(has_work)) {}

  // FAILED_PRECONDITION while another operation is not through; else what `body` returned, or what became of it so far.
  absl::StatusOr<Turn> Run(const std::string& operation, std::chrono::nanoseconds timeout,
                           std::function<absl::Status()> body);
  // Waits for what is under way, if anything is, whatever becomes of it. False: not in time.
  bool AwaitIdle(std::chrono::nanoseconds timeout);
  void Look();  // there may be work; any thread, with nothing held that has_work takes

 private:
  const std::function<bool()> has_work_;
  core::Mutex mutex_;
  core::Condition changed_;
  std::string operation_ ABSL_GUARDED_BY(mutex_);                // under way, or through and not told; "": none
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);  // of an operation that is through
  TaskThread thread_;
};

}  // namespace causeway::worker
