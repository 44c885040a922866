// The operations that a rank has requested, run one after the other on a thread of their own.
//
//   Post(operation) ─► ticket ─► … ─► Await(ticket, timeout): done, or the first failure of all
//
// After a failure nothing runs any more. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

class OperationQueue {
 public:
  // `failed(reason)` is called once, on the thread that notices first, and must end the operation in progress.
  // `name_of(rank)`: for error messages; −1 is this rank.
  OperationQueue(std::function<void(const std::string& reason)> failed, std::function<std::string(int rank)> name_of);
  ~OperationQueue();

  struct Operation {
    std::string name;
    std::function<absl::Status()> run;  // its failures name the rank responsible
  };
  Collectives::Ticket Post(Operation operation);
  absl::Status Await(Collectives::Ticket ticket, Collectives::Timeout timeout);
  bool IsDone(Collectives::Ticket ticket);
  void Fail(const absl::Status& failure, const std::string& reason);  // no effect if it has failed before

  void NowAwaits(int rank);  // called by the operation in progress

 private:
  void Serve();

  const std::function<void(const std::string& reason)> failed_;
  const std::function<std::string(int rank)> name_of_;
  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);  // the front runs
  int64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first
  int awaited_ ABSL_GUARDED_BY(mutex_) = -1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;  // last: it calls us
};

}  // namespace causeway::worker
