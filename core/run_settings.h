// A run's settings over time: those that it began with, and each change since, a revision. A revision holds from an
// inner step on for what a site does alone, and from a base version of each fragment on for what a round does, so that
// a replay takes the same settings, and gives the same bits.
//
//   causewayctl set ─► coordinator: journal ─► Welcome, headers of downloads ─► sites
//
// Thread-safe; references stay valid as long as the object. Source: docs/operating.md, "Changing a running run".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/mutex.h"
#include "core/run_config.h"

namespace causeway::core {

struct SettingsRevision {
  int64_t number = 0;                // 1, 2, …
  Step step = 0;                     // the first inner step with it
  std::vector<Version> versions;     // of each fragment: the first base version with it
  std::string run_config;            // all settings with it, serialized
  std::vector<std::string> changes;  // "inner.lr: 0.003 → 0.0001"
  int64_t unix_ms = 0;               // when it was decided

  friend bool operator==(const SettingsRevision&, const SettingsRevision&) = default;
};

class RunSettings {
 public:
  explicit RunSettings(RunConfig first) : first_(std::move(first)) {}

  const RunConfig& first() const { return first_; }
  const RunConfig& newest() const;
  const RunConfig& AtStep(Step t) const;
  const RunConfig& AtVersion(FragmentId fragment, Version base) const;
  int64_t RevisionAt(FragmentId fragment, Version base) const;  // the number; 0: none

  int64_t revision() const;  // the newest one's number; 0: none
  std::vector<SettingsRevision> After(int64_t number) const;

  // Revisions come in order: one that is known is passed over (false).
  bool Add(SettingsRevision revision, RunConfig config);  // its run_config, read
  void Forget();                                          // all revisions: they are of a state that was lost

 private:
  struct Later {
    SettingsRevision revision;
    RunConfig config;
  };

  const Later* Holding(FragmentId fragment, Version base) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // null: none

  const RunConfig first_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const Later>> later_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<const Later>> forgotten_ ABSL_GUARDED_BY(mutex_);  // some may hold references
};

}  // namespace causeway::core
