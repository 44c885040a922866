// The board on which the coordinator publishes its status, for all readers.
//
//   RunExchange::Tick, every 250 ms ── Publish ──► history, alarms ─► the board's page ◄── GET /status, /metrics, …
//                                                                     rendered at the first read, shared by all
//
// Readers take no lock that the rules or the merge take, only the board's own: to copy a pointer and, for the first
// reader, to render. Publish and the setters are for one thread; the read functions are thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/mutex.h"
#include "server/status/alarms.h"
#include "server/status/host_status.h"
#include "server/status/status_history.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {

using SharedText = std::shared_ptr<const std::string>;

// A yes, or a no with its reason.
struct Answer {
  bool ok = false;
  std::string reason;
};

struct StatusBoardOptions {
  std::string version;  // of the program
  HostFiles host;
  const core::Clock* clock = &core::SystemClock();
};

class StatusBoard {
 public:
  // If there is no new page for this long, the process no longer serves: a tick that takes so long is waiting for a
  // disk.
  static constexpr int64_t kSilentMs = 30'000;

  explicit StatusBoard(StatusBoardOptions options);

  void Publish(StatusSnapshot snapshot);
  void SetReady();                           // sites may join
  void SetNotReady(const std::string& why);  // before that, and while it stops

  // nullptr before the first page.
  SharedText Status(Details details = Details::kAuto) const;
  SharedText Timeline() const;
  SharedText Metrics() const;

  Answer Healthy() const;  // it serves, and its journal has not failed
  Answer Ready() const;    // sites may join

  std::atomic<int>& event_streams() { return event_streams_; }  // the number open; each stream counts itself

 private:
  // One snapshot and its rendered texts.
  struct Page {
    StatusSnapshot snapshot;
    int64_t published_ms = 0;
    core::Mutex mutex;
    SharedText status ABSL_GUARDED_BY(mutex);
    SharedText full_status ABSL_GUARDED_BY(mutex);
    SharedText timeline ABSL_GUARDED_BY(mutex);
    SharedText metrics ABSL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Page> CurrentPage() const;
  template <typename Render>
  SharedText Rendered(SharedText Page::*text, Render render) const;

  const StatusBoardOptions options_;
  HostWatch host_;       // used by Publish alone, like the next three
  int64_t host_ms_ = 0;  // when it was last read
  HostStatus host_status_;
  StatusHistory history_;
  AlarmBook alarm_book_;
  std::atomic<int> event_streams_ = 0;

  mutable core::Mutex mutex_;  // a leaf, held for moments
  std::shared_ptr<Page> page_ ABSL_GUARDED_BY(mutex_);
  std::string not_ready_ ABSL_GUARDED_BY(mutex_) = "the coordinator starts";  // empty: it is ready
};

}  // namespace causeway::server
