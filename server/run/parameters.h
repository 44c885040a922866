// The run's parameters at the coordinator, and the threads that merge into them.
//
//   decided rounds ─► queue ─► merge thread: Merge ─► W, v, ē of a fragment ─► journal: digest, update; now and then a
//                                    │                                          snapshot
//                                    └─► Update, chunk by chunk ─► downloads
//
// Rounds are merged one at a time, on all cores; the merge thread takes part and waits for the other threads, so that a
// fragment's state belongs to it alone: downloads read updates, and read anchors from the snapshots' files. For a
// joiner that needs a newer snapshot, one is made between two merges. Thread-safe; callbacks are made without a lock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fragment_state.h"
#include "core/host_limits.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/progress.h"
#include "core/thread.h"
#include "server/merge/contribution.h"
#include "server/merge/merge.h"
#include "server/run/chunk_source.h"
#include "server/store/journal.h"

namespace causeway::server {

using Contributions = std::vector<std::shared_ptr<Contribution>>;

// A decided round, ready to merge.
struct MergeJob {
  RoundRecord round;
  Contributions contributions;                          // one per contributor; empty if `load` is set
  std::function<absl::StatusOr<Contributions>()> load;  // for a round decided in an earlier life
};

// A fragment at startup: the newest snapshot, and the updates still stored.
struct StartingFragment {
  core::FragmentState state;
  uint64_t digest = 0;
  VersionFacts facts;  // facts of the snapshot's version
  std::vector<StoredRound> updates;
};

// A merged round, for observers.
struct MergedRound {
  const RoundRecord& round;
  core::AnchorDigest committed;
  const MergeResult& result;
  double merge_s = 0;  // duration of the arithmetic
};

struct ParametersOptions {
  core::FragmentMap map;
  uint64_t generation = 0;  // the model's generation
  std::shared_ptr<Waiters> waiters = std::make_shared<Waiters>();
  // The settings of a round, by its base version; without threads, which are created here. Called on any thread.
  std::function<MergeSettings(core::FragmentId fragment, core::Version base)> merge;
  int merge_threads = core::UsableCores();
  int64_t snapshot_every = 0;  // rounds; 0 = only on request
  Journal* journal = nullptr;
  std::function<void(const MergedRound&)> merged;   // on the merge thread, after each round
  std::function<void(const absl::Status&)> failed;  // on the merge thread, which then stops merging
};

class Parameters {
 public:
  explicit Parameters(ParametersOptions options);
  ~Parameters();  // completes the round in progress; the others are left to the next start

  void Set(std::vector<StartingFragment> fragments);  // to be called once
  bool is_set() const;

  void Merge(MergeJob job);  // rounds of a fragment in order
  absl::Status Finish();     // merges the queue, and saves snapshots of fragments changed since their last

  // The update from version `base`, whether complete, being merged or still to come; NOT_FOUND if it was dropped.
  absl::StatusOr<std::shared_ptr<ChunkSource>> UpdateSource(core::FragmentId fragment, core::Version base) const;

  // Anchor and momentum of at least that version, or nullptr: `waiter` is answered when a retry makes sense.
  absl::StatusOr<std::shared_ptr<ChunkSource>> AnchorSource(core::FragmentId fragment, core::Version at_least,
                                                            uint64_t held_digest, Waiter waiter);

  core::AnchorDigest Committed(core::FragmentId fragment) const;
  bool Merging(core::FragmentId fragment) const;  // decided, not yet committed

 private:
  struct Slot {
    core::FragmentState state;  // owned by the merge thread
    core::AnchorDigest committed;
    core::AnchorDigest snapshot;
    VersionFacts committed_facts, snapshot_facts;
    int64_t bytes_since_snapshot = 0;  // payload of the updates since then
    bool snapshot_wanted = false;
    std::map<core::Version, std::shared_ptr<Update>> updates;  // keyed by base; the last belongs to the open round
    int queued = 0;
  };

  void Run();
  absl::Status MergeOne(MergeJob& job);
  absl::Status RollBack(const RoundRecord& round);
  absl::Status Snapshot(core::FragmentId fragment);
  bool NextSnapshot(core::FragmentId* fragment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WaitKey KeyOf(core::FragmentId fragment, core::Version version) const {
    return {options_.generation, fragment, version};
  }
  std::shared_ptr<Update> UpdateTo(core::FragmentId fragment, core::Version version) const;

  const ParametersOptions options_;
  core::ThreadTeam merge_threads_;  // used by the merge thread
  mutable core::Mutex mutex_;
  core::Condition changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // merging, saving, or notifying
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> slots_;                             // some fields as noted in Slot, the rest under mutex_
  std::deque<MergeJob> queue_ ABSL_GUARDED_BY(mutex_);  // front is being merged
  core::Thread thread_;
};

}  // namespace causeway::server
