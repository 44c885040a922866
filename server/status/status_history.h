// The parts of a status that one snapshot alone cannot give: rates, series, trends.
//
//   Note(snapshot), every 250 ms ─► remembers a little ─► fills the snapshot's fields marked "board"
//
// Bounded: a site has 100 points of loss, a second of byte counts, and 21 norms. Pure: times come with the snapshots.
// One owner at a time.
#pragma once

#include <deque>
#include <map>

#include "server/status/status_snapshot.h"
#include "server/status/thinned_series.h"

namespace causeway::server {

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
    int64_t rounds = -1;       // of all fragments, at the last norm
    std::deque<double> norms;  // of the last kTrendRounds + 1 rounds
    double largest_norm = 0;   // of the rounds before them
    bool has_earlier = false;  // there were such rounds
    std::optional<int64_t> mismatched_unix_ms;
    int64_t redials = 0;  // of connections, as it reported last
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

}  // namespace causeway::server
