// The run's parameters at the coordinator, and the threads that merge into them.
//
//   decided rounds ─► queue ─► merge thread: Merge ─► W, v, ē of a fragment ─► journal: digest, update; now and then a
//                                    │                                          snapshot
//                                    └─► Update, chunk by chunk ─► downloads
//
// A round is merged on all cores, one at a time; the merge thread is one of them and waits for the others, so that a
// fragment's state belongs to it alone: downloads read updates, and anchors from snapshots' files. A
// joiner for whom the newest snapshot is too old has one made between two merges. Thread-safe; callbacks without a
// lock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fragment_state.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/merge/contribution.h"
#include "server/merge/merge.h"
#include "server/service/chunk_source.h"
#include "server/service/waiters.h"
#include "server/store/journal.h"

namespace causeway::server {

using Contributions = std::vector<std::shared_ptr<Contribution>>;

// A decided round, ready to merge.
struct MergeJob {
  RoundRecord round;
  Contributions contributions;  // of each contributor; or, of a round that an earlier life decided:
  std::function<absl::StatusOr<Contributions>()> load;
};

// A fragment as a start finds it: the newest snapshot, and the updates that are still there.
struct StartingFragment {
  core::FragmentState state;
  uint64_t digest = 0;
  std::optional<core::CodecId> up;  // of contributions to its version, where the coordinator chooses
  std::vector<StoredRound> updates;
};

// A round that was merged, for those who watch.
struct MergedRound {
  const RoundRecord& round;
  core::AnchorDigest committed;
  const MergeResult& result;
  double merge_s = 0;  // seconds that the arithmetic took
};

struct ParametersOptions {
  core::FragmentMap map;
  uint64_t generation = 0;  // of the model
  std::shared_ptr<Waiters> waiters = std::make_shared<Waiters>();
  MergeSettings merge;  // without threads: they are made here
  int merge_threads = core::ThreadTeam::AllCores();
  int64_t snapshot_every = 0;  // rounds; 0 = only when asked for
  Journal* journal = nullptr;
  std::function<void(const MergedRound&)> merged;   // on the merge thread, after each round
  std::function<void(const absl::Status&)> failed;  // on the merge thread; it merges no more then
};

class Parameters {
 public:
  explicit Parameters(ParametersOptions options);
  ~Parameters();  // the round that is being merged is completed, the others are left to the next start

  void Set(std::vector<StartingFragment> fragments);  // once
  bool is_set() const;

  void Merge(MergeJob job);  // rounds of a fragment in order
  absl::Status Finish();     // merges what is queued and saves snapshots of what has moved since the last

  // The update of `base`, whether it is complete, being merged or still to come; NOT_FOUND if it was dropped.
  absl::StatusOr<std::shared_ptr<ChunkSource>> UpdateSource(core::FragmentId fragment, core::Version base) const;

  // Anchor and momentum of at least that version, or nullptr: `waiter` is answered when asking again makes sense.
  absl::StatusOr<std::shared_ptr<ChunkSource>> AnchorSource(core::FragmentId fragment, core::Version at_least,
                                                            uint64_t held_digest, Waiter waiter);

  core::AnchorDigest Committed(core::FragmentId fragment) const;
  bool Merging(core::FragmentId fragment) const;  // decided, not yet committed

 private:
  struct Slot {
    core::FragmentState state;  // of the merge thread
    core::AnchorDigest committed;
    core::AnchorDigest snapshot;
    std::optional<core::CodecId> committed_up, snapshot_up;  // of contributions to these versions
    int64_t bytes_since_snapshot = 0;                        // of updates
    bool snapshot_wanted = false;
    std::map<core::Version, std::shared_ptr<Update>> updates;  // by base; the last is of the open round
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
  core::ThreadTeam merge_threads_;  // of the merge thread
  mutable core::Mutex mutex_;
  core::Condition changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // merges or saves, or tells of it
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> slots_;                             // as Slot says, the rest under mutex_
  std::deque<MergeJob> queue_ ABSL_GUARDED_BY(mutex_);  // front is being merged
  core::Thread thread_;
};

}  // namespace causeway::server
