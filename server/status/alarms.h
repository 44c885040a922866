// Conditions that need an operator's attention. docs/monitoring.md explains each alarm and what to do about it.
//
//   snapshot with the history's additions ─► FindAlarms ─► AlarmBook: since when each alarm is on
//
// FindAlarms is a pure function; the book has one owner at a time.
//
// site_gone: the site's lease ended (SiteStatus::lost). A gone site is listed for as long as the run, but the alarm
// ends earlier: when the site joins again, when an operator drains it (`drain` of a gone site means that it is not
// expected back), or when the run ends. A site that left, finished, or was draining when its lease ended never raises
// it.
#pragma once

#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "server/status/status_snapshot.h"

namespace causeway::server {

inline constexpr std::array<std::string_view, 34> kAlarmNames = {
    "below_quorum",         "training_diverges", "digest_mismatch", "disk_low",
    "certificate_ending",   "site_alone",        "site_gone",       "residual_growing",
    "site_silent",          "run_paused",        "disk_slow",       "unknown_lineage",
    "history_lost",         "two_coordinators",  "damage_found",    "site_quarantined",
    "contribution_refused", "outlier_merged",    "lengths_apart",   "site_noisy",
    "unproven_claim",       "shard_gone",        "straggler",       "no_checkpoint",
    "transfer_stalled",     "log_stuck",         "loss_outlier",    "file_refused",
    "round_stands",         "transfers_fail",    "two_workers",     "no_standby",
    "standby_behind",       "copy_failed",
};

// The alarms that the snapshot calls for, critical ones first, without their times.
std::vector<Alarm> FindAlarms(const StatusSnapshot& snapshot);

std::string_view SeverityName(Severity severity);  // "warning" | "critical"

class AlarmBook {
 public:
  // Fills `since_unix_ms` of the alarms that are on at `unix_ms`, and forgets all others. An alarm that rises to
  // critical keeps the time at which it became a warning.
  void Note(std::vector<Alarm>& alarms, int64_t unix_ms);

 private:
  using Key = std::pair<std::string, std::optional<core::SiteId>>;  // name and site
  std::map<Key, int64_t> since_unix_ms_;
};

}  // namespace causeway::server
