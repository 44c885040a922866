// What somebody should look at. docs/monitoring.md says of each alarm what it means and what to do.
//
//   snapshot with what the history adds to it ─► FindAlarms ─► AlarmBook: since when each is on
//
// FindAlarms is a pure function; the book has one owner at a time.
//
// site_gone: the site's lease ended (SiteStatus::lost). A gone site is listed as long as the run is, but not missed so
// long: the alarm ends when the site joins again, when an operator drains it (`drain` of a gone site says that nobody
// waits for it), and when the run ends. One that left, finished, or was draining when its lease ended never has it.
#pragma once

#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "server/status/status_snapshot.h"

namespace causeway::server {

inline constexpr std::array<std::string_view, 19> kAlarmNames = {
    "below_quorum",         "training_diverges", "digest_mismatch", "disk_low",
    "certificate_ending",   "site_alone",        "site_gone",       "residual_growing",
    "site_silent",          "run_paused",        "disk_slow",       "unknown_lineage",
    "history_lost",         "two_coordinators",  "damage_found",    "site_quarantined",
    "contribution_refused", "outlier_merged",    "site_noisy",
};

// Those that the snapshot gives reason for, critical ones first, without their times.
std::vector<Alarm> FindAlarms(const StatusSnapshot& snapshot);

std::string_view SeverityName(Severity severity);  // "warning" | "critical"

class AlarmBook {
 public:
  // Fills `since_unix_ms` of alarms that are on at `unix_ms`, and forgets those that are not. One that rises to
  // critical is on since it first was a warning.
  void Note(std::vector<Alarm>& alarms, int64_t unix_ms);

 private:
  using Key = std::pair<std::string, std::optional<core::SiteId>>;  // of its name and site
  std::map<Key, int64_t> since_unix_ms_;
};

}  // namespace causeway::server
