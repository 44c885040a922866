#include "worker/site/step_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

absl::StatusOr<StepThread::Turn> StepThread::Run(const std::string& operation, std::chrono::nanoseconds timeout,
                                                 std::function<absl::Status()> body) {
  core::MutexLock lock(mutex_);
  if (operation_.empty()) {
    operation_ = operation;
    thread_.Post([this, body = std::move(body)] {
      absl::Status outcome = absl::InternalError("internal error");
      core::Guarded([&] { outcome = body(); });
      core::MutexLock end(mutex_);
      outcome_ = std::move(outcome);
      changed_.NotifyAll();
    });
  } else if (operation_ != operation) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected ", operation_, " again, which has not finished, got ", operation));
  }
  const bool there = lock.WaitFor(changed_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return outcome_.has_value() || has_work_();
  });
  if (!there) return Turn::kAgain;
  // Also before an operation is reported as done: its last request concerns the step that it ends.
  const bool failed = outcome_.has_value() && !outcome_->ok();
  if (!failed && has_work_()) return Turn::kWork;
  operation_.clear();
  const absl::Status outcome = *std::exchange(outcome_, std::nullopt);
  if (!outcome.ok()) return outcome;
  return Turn::kDone;
}

void StepThread::Look() {
  core::MutexLock lock(mutex_);
  changed_.NotifyAll();
}

bool StepThread::AwaitIdle(std::chrono::nanoseconds timeout) {
  core::MutexLock lock(mutex_);
  const bool idle = lock.WaitFor(changed_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return operation_.empty() || outcome_.has_value();
  });
  if (!idle) return false;
  operation_.clear();
  outcome_.reset();
  return true;
}

}  // namespace causeway::worker
