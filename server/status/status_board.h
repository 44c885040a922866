// The board on which the coordinator publishes its status, for all readers.
//
//   RunExchange::Tick, every 250 ms ── Publish ──► history, alarms ─► the board's page ◄── GET /status, /metrics, …
//                                                                     rendered at the first read, shared by all
//
// Readers take no lock that the rules or the merge take, only the board's own: to copy a pointer and, for the first
// reader, to render. Publish and the setters are for one thread; the read functions are thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/mutex.h"
#include "server/status/alarms.h"
#include "server/status/host_status.h"
#include "server/status/status_snapshot.h"
#include "server/status/thinned_series.h"

namespace causeway::server {

// The parts of a status that one snapshot alone cannot give: rates, series, trends.
//
//   Note(snapshot), every 250 ms ─► remembers a little ─► fills the snapshot's fields marked "board"
//
// Bounded: a site has 100 points of loss, a second of byte counts, and 21 norms. Pure: times come with the snapshots.
// One owner at a time.
class StatusHistory {
 public:
  static constexpr size_t kLossPoints = 100;
  static constexpr size_t kEvalPoints = 200;
  static constexpr double kPeakWindowS = 1;
  static constexpr size_t kTrendRounds = 10;
  // A loss is apart where it is this many deviations (the median of distances from the median) from the median of at
  // least two others; losses differ by this share anyway.
  static constexpr double kApartDeviations = 6;
  static constexpr double kLeastDeviation = 0.05;
  static constexpr int kReportsApart = 3;
  static constexpr int64_t kRedialShownMs = 60'000;
  static constexpr int64_t kMismatchShownMs = 60'000;  // a site that resynced is still shown for several scrapes

  void Note(StatusSnapshot& snapshot);

 private:
  struct Bytes {
    double uptime_s = 0;
    int64_t up = 0;
    int64_t down = 0;
  };
  struct Site {
    std::deque<Bytes> window;
    RateFigures up_rate, down_rate;
    std::shared_ptr<const core::Progress> noted;
    SiteCounts counts;
    ThinnedSeries<LossPoint> losses{kLossPoints};
    int reports_apart = 0;     // the latest in a row whose loss was apart from the others'
    int64_t rounds = -1;       // merged over all fragments when the last norm was noted
    std::deque<double> norms;  // the norms of the last kTrendRounds + 1 rounds
    double largest_norm = 0;   // the largest norm of the rounds before them
    bool has_earlier = false;  // there were such rounds
    std::optional<int64_t> mismatched_unix_ms;
    int64_t redials = 0;  // number of redials in its last report
    std::optional<int64_t> redialled_unix_ms;
  };

  static void NoteBytes(const StatusSnapshot& snapshot, SiteStatus& status, Site& site);
  static void NoteProgress(const StatusSnapshot& snapshot, SiteStatus& status, Site& site);
  static void NoteRedials(const StatusSnapshot& snapshot, SiteStatus& status, Site& site);
  static void NoteResidual(const StatusSnapshot& snapshot, SiteStatus& status, Site& site);
  void NoteEval(StatusSnapshot& snapshot);

  std::map<core::SiteId, Site> sites_;
  ThinnedSeries<EvalPoint> evals_{kEvalPoints};
  std::vector<core::Version> noted_eval_;
};

// Finds the fragments for which a site reports a digest other than the one that the coordinator committed for the same
// version, as far as the snapshot knows that version.
void FindMismatches(StatusSnapshot& snapshot);

using SharedText = std::shared_ptr<const std::string>;

// A yes, or a no with its reason.
struct Answer {
  bool ok = false;
  std::string reason;
};

struct StatusBoardOptions {
  std::string version;  // the program's version
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

  std::atomic<int>& event_streams() { return event_streams_; }  // the number of open streams

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
  HostWatch host_;       // used by Publish alone, like the members down to alarm_book_
  int64_t host_ms_ = 0;  // when it was last read
  HostStatus host_status_;
  StatusHistory history_;
  AlarmBook alarm_book_;
  std::atomic<int> event_streams_ = 0;

  mutable core::Mutex mutex_;  // no other lock is taken under it; held for moments
  std::shared_ptr<Page> page_ ABSL_GUARDED_BY(mutex_);
  std::string not_ready_ ABSL_GUARDED_BY(mutex_) = "the coordinator starts";  // empty: it is ready
};

}  // namespace causeway::server
