#include "server/store/journal_queue.h"

#include <utility>

#include "core/limits.h"

namespace causeway::server {

uint64_t JournalQueue::Add(JournalItem item) {
  const core::MutexLock lock(mutex_);
  event_bytes_ += item.event_bytes();
  items_.push_back(std::move(item));
  changed_.NotifyAll();
  return ++added_;
}

absl::Status JournalQueue::WaitFor(uint64_t ticket) const {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_ >= ticket; });
  return status_;
}

void JournalQueue::WaitForAll() const {
  uint64_t last = 0;
  {
    const core::MutexLock lock(mutex_);
    last = added_;
  }
  WaitFor(last).IgnoreError();
}

bool JournalQueue::full() const {
  const core::MutexLock lock(mutex_);
  return event_bytes_ > core::kMaxQueuedEventBytes;
}

absl::Status JournalQueue::status() const {
  const core::MutexLock lock(mutex_);
  return status_;
}

void JournalQueue::Fail(const absl::Status& status) {
  const core::MutexLock lock(mutex_);
  status_ = status;
}

void JournalQueue::NoteSynced() {
  const core::MutexLock lock(mutex_);
  synced_ = true;
  changed_.NotifyAll();
}

void JournalQueue::Close() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
}

std::optional<JournalQueue::Batch> JournalQueue::Take(std::optional<core::Clock::TimePoint> due) {
  core::MutexLock lock(mutex_);
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || synced_ || !items_.empty(); };
  if (due && status_.ok()) {
    lock.WaitFor(changed_, *due - core::SystemClock().Now(), ready);
  } else {
    lock.Wait(changed_, ready);
  }
  synced_ = false;
  if (items_.empty() && closing_) return std::nullopt;
  return Batch{std::exchange(items_, {}), status_};
}

void JournalQueue::Finish(size_t items, int64_t event_bytes) {
  const core::MutexLock lock(mutex_);
  finished_ += items;
  event_bytes_ -= event_bytes;
  changed_.NotifyAll();
}

}  // namespace causeway::server
