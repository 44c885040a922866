#include "worker/ranks/operation_queue.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"

namespace causeway::worker {

OperationQueue::OperationQueue(std::function<void(const std::string&)> failed, std::function<std::string(int)> name_of)
    : failed_(std::move(failed)), name_of_(std::move(name_of)), thread_([this] { Serve(); }) {}

OperationQueue::~OperationQueue() {
  bool under_way = false;
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    under_way = !queue_.empty();
    changed_.NotifyAll();
  }
  const std::string reason = name_of_(-1) + ": its group ended with operations under way";
  if (under_way) Fail(absl::AbortedError(reason), reason);
  thread_.Join();
}

Collectives::Ticket OperationQueue::Post(Operation operation) {
  core::MutexLock lock(mutex_);
  if (failure_.ok()) queue_.push_back(std::move(operation));
  changed_.NotifyAll();
  return ++posted_;
}

void OperationQueue::Serve() {
  while (true) {
    Operation* operation = nullptr;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      operation = &queue_.front();  // stays in place: others only append
    }
    const absl::Status status = operation->run();
    if (!status.ok()) Fail(status, std::string(status.message()));
    core::MutexLock lock(mutex_);
    awaited_ = -1;
    if (failure_.ok()) {
      queue_.pop_front();
      ++done_;
    } else {
      queue_.clear();
    }
    changed_.NotifyAll();
  }
}

void OperationQueue::Fail(const absl::Status& failure, const std::string& reason) {
  {
    core::MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = failure;
    changed_.NotifyAll();
  }
  failed_(reason);
}

void OperationQueue::NowAwaits(int rank) {
  core::MutexLock lock(mutex_);
  awaited_ = rank;
}

bool OperationQueue::IsDone(Collectives::Ticket ticket) {
  core::MutexLock lock(mutex_);
  return done_ >= ticket;
}

absl::Status OperationQueue::Await(Collectives::Ticket ticket, Collectives::Timeout timeout) {
  std::string silent;
  {
    core::MutexLock lock(mutex_);
    if (!lock.WaitFor(changed_, timeout,
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= ticket || !failure_.ok(); })) {
      silent = absl::StrFormat("%s has said nothing for %.1f s: %s is not done", name_of_(awaited_),
                               std::chrono::duration<double>(timeout).count(), queue_.front().name);
    }
  }
  if (!silent.empty()) Fail(absl::DeadlineExceededError(silent), silent);
  core::MutexLock lock(mutex_);
  if (done_ >= ticket) return absl::OkStatus();
  // Until then the operation in progress may still access its memory.
  lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.empty(); });
  return failure_;
}

}  // namespace causeway::worker
