// The log of a site's training, as JSON lines that pandas, jq and tail can read while it runs.
//
//   steps, once a period   {"kind": "step", "unix_ms", "site", "step", "tokens", "loss", "tokens_per_s", "utilization",
//                           "stall_s", "slack_s", "rounds", "contributions_sent", "contributions_merged",
//                           "residual_norm", "up_bytes_per_s", "down_bytes_per_s"}
//   evaluations            {"kind": "eval", "unix_ms", "site", "loss", "versions"}      of the global parameters
//   files                  {"kind": "checkpoint" | "export", "unix_ms", "site", "step" | "path", "seconds"}
//
// Units are those of /status; a number that is not finite is null. The file is appended to, so a restarted worker
// continues it. A line that cannot be written is lost, which is logged once; training does not end because of it.
// Thread-safe.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/progress.h"

namespace causeway::worker {

class TrainingLog {
 public:
  // Null where the path is empty. UNAVAILABLE, with the path, if it cannot be opened for appending. `step_period_s`:
  // the shortest time between two lines of steps; 0: each step has a line.
  static absl::StatusOr<std::unique_ptr<TrainingLog>> Open(const std::string& path, core::SiteId site,
                                                           double step_period_s = 0);
  ~TrainingLog();

  // Writes a line if one is due.
  void Step(int64_t unix_ms, const core::Progress& progress, core::Version rounds);
  void Eval(int64_t unix_ms, double loss, const std::vector<core::Version>& versions);
  void Checkpoint(int64_t unix_ms, core::Step step, double seconds);
  void Export(int64_t unix_ms, const std::string& path, double seconds);

 private:
  TrainingLog(std::FILE* file, std::string path, core::SiteId site, double step_period_s);
  void Append(const std::string& line);
  void OpenAgainIfMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const core::SiteId site_;
  const int64_t step_period_ms_;
  core::Mutex mutex_;
  int64_t stepped_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // when the last line of a step was written
  std::FILE* file_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::worker
