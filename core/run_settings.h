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
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/mutex.h"
#include "core/run_config.h"

namespace causeway::core {

struct SettingsRevision {
  int64_t number = 0;                // 1, 2, …
  Step step = 0;                     // the first inner step with it
  std::vector<Version> versions;     // by fragment: the first base version with it
  std::string run_config;            // all settings with it, serialized
  std::vector<std::string> changes;  // "inner.lr: 0.003 → 0.0001"
  int64_t unix_ms = 0;               // when it was decided
  uint64_t nonce = 0;                // tells it from another revision of the same number
  uint64_t digest = 0;               // DigestOf; 0: unknown, from a program without digests

  friend bool operator==(const SettingsRevision&, const SettingsRevision&) = default;
};

// XXH3-64 over the parent's digest and what decides: number, step, versions, settings, nonce. Never 0.
uint64_t DigestOf(uint64_t parent, const SettingsRevision& revision);

// Revisions in order, without a gap. A revision that sites know never changes: a cancelled change is followed by
// another one.
struct SettingsChain {
  static constexpr size_t kMost = 64;  // the most revisions that a message has

  uint64_t before = 0;  // digest of the revision before the first; 0: there is none, or it is unknown
  std::vector<SettingsRevision> revisions;

  const SettingsRevision* Find(int64_t number) const;      // null: the chain does not reach there
  std::optional<uint64_t> DigestAt(int64_t number) const;  // 0 for number 0; nullopt where the chain does not reach
  bool IsChained() const;                                  // all revisions have digests, each made over the one before
  friend bool operator==(const SettingsChain&, const SettingsChain&) = default;
};

class RunSettings {
 public:
  explicit RunSettings(RunConfig first) : first_(std::move(first)) {}

  const RunConfig& first() const { return first_; }
  const RunConfig& newest() const;
  const RunConfig& Of(int64_t number) const;  // REQUIRES: there is such a revision
  const RunConfig& AtStep(Step t) const;
  const RunConfig& AtVersion(FragmentId fragment, Version base) const;
  int64_t RevisionAt(FragmentId fragment, Version base) const;  // the number; 0: none

  int64_t revision() const;                                   // number of the newest revision; 0: none
  uint64_t digest() const;                                    // digest of the newest revision
  std::vector<SettingsRevision> After(int64_t number) const;  // at most the newest SettingsChain::kMost
  SettingsChain Chain() const;                                // the same revisions, and the digest before them

  // The changes that are still to come: after `step`, in the order of their steps.
  struct Change {
    Step step = 0;
    std::vector<Version> versions;
    const RunConfig* config = nullptr;
  };
  std::vector<Change> Pending(Step step) const;

  // Whether the coordinator's chain continues ours, as far as both reach: it lacks no revision that we know, and has
  // the same digests. Revisions missing between the two do no harm if its first one holds at all of `versions` already.
  bool Agrees(const SettingsChain& theirs, const std::vector<Version>& versions) const;

  // Revisions come in order: one that is known is passed over (returns false). `config`: its run_config, read; it holds
  // from the revision's step on, or, for a site that hears of it late, from `from`.
  bool Add(SettingsRevision revision, RunConfig config, Step from = 0);
  void BeginAfter(uint64_t before);  // the next revision is not the run's first: `before` is the digest before it
  void Forget();                     // forgets all revisions: they are of a state that was lost

 private:
  struct Later {
    SettingsRevision revision;
    RunConfig config;
    Step from = 0;
  };

  const Later* Holding(FragmentId fragment, Version base) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // null: none

  const RunConfig first_;
  mutable Mutex mutex_;
  uint64_t before_ ABSL_GUARDED_BY(mutex_) = 0;  // digest of the revision before the first
  std::vector<std::unique_ptr<const Later>> later_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<const Later>> forgotten_ ABSL_GUARDED_BY(mutex_);  // kept, since some may hold references
};

}  // namespace causeway::core
