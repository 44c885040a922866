// The items on their way to the journal's thread, and what became of those before. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "server/store/journal_files.h"

namespace causeway::server {

class JournalQueue {
 public:
  uint64_t Add(JournalItem item);               // a ticket
  absl::Status WaitFor(uint64_t ticket) const;  // until it is durable and notified, or has failed: the journal's status
  void WaitForAll() const;                      // that were added before
  bool full() const;                            // with more than core::kMaxQueuedEventBytes of events

  absl::Status status() const;  // OK, or why the journal has ended
  void Fail(const absl::Status& status);
  void NoteSynced();  // by the late sync: the journal's thread looks after its files
  void Close();

  // ---- The journal's thread ----
  // All that has queued up; no item: it is to look after its files, which it does at `due` at the latest. Nothing: the
  // queue is closed and empty.
  struct Batch {
    std::vector<JournalItem> items;
    absl::Status status;  // of the journal
  };
  std::optional<Batch> Take(std::optional<core::Clock::TimePoint> due);
  void Finish(size_t items, int64_t event_bytes);  // they are durable and notified, or have failed

 private:
  mutable core::Mutex mutex_;
  mutable core::Condition changed_;
  std::vector<JournalItem> items_ ABSL_GUARDED_BY(mutex_);
  uint64_t added_ ABSL_GUARDED_BY(mutex_) = 0;  // ever
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t event_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those not finished
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool synced_ ABSL_GUARDED_BY(mutex_) = false;  // since the thread last took
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
