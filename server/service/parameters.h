// The run's parameters at the coordinator, and the thread that merges rounds into them.
//
//   decided rounds ─► queue ─► merge thread ─► fragment state (W, v, ē)  ─► anchors for joiners
//                                    └──────► Update, chunk by chunk     ─► all sites
//
// A joiner reads a fragment's state while a merge may want to change it: the merge then goes on in a copy, so memory
// stays at 12 bytes a parameter unless somebody joins. Thread-safe; `wake` and `merged` are called without the lock.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "server/merge/contribution.h"
#include "server/merge/merge.h"
#include "server/service/chunk_source.h"
#include "server/store/state_store.h"

namespace causeway::server {

// A decided round, ready to merge.
struct MergeJob {
  core::FragmentId fragment = 0;
  core::Version base = 0;
  std::vector<core::SiteId> contributors;  // in bytewise order
  std::vector<double> weights;
  std::vector<std::shared_ptr<Contribution>> contributions;
  std::vector<core::SiteId> sites;
};

class Parameters {
 public:
  // `merged(fragment, version, digest)` runs on the merge thread after each round.
  using OnMerged = std::function<void(core::FragmentId, core::AnchorDigest)>;

  Parameters(core::FragmentMap map, MergeSettings settings, OnMerged merged);
  ~Parameters();  // merges what is queued first

  // Once: the initial parameters, or those of a saved state with its retained updates. `versions` are the open rounds.
  void Set(std::vector<SavedFragment> fragments);
  bool is_set() const;

  void Merge(MergeJob job);
  void Finish();  // returns when nothing is queued and OnMerged was told of all

  // The update of `base`, whether it is complete, being merged or still to come; NOT_FOUND if it was dropped.
  absl::StatusOr<std::shared_ptr<ChunkSource>> UpdateSource(core::FragmentId fragment, core::Version base) const;

  // Anchor and momentum of at least that version, or nullptr: `wake` is called when asking again makes sense.
  std::shared_ptr<ChunkSource> AnchorSource(core::FragmentId fragment, core::Version at_least, uint64_t held_digest,
                                            std::function<void()> wake);

  core::AnchorDigest Committed(core::FragmentId fragment) const;
  bool Merging(core::FragmentId fragment) const;  // decided, not yet committed

  // Everything to save, without contributions. Only from OnMerged or after Finish, when no merge is under way; nothing
  // while decided rounds wait.
  std::optional<std::vector<SavedFragment>> Save() const;

 private:
  struct Slot {
    std::shared_ptr<core::FragmentState> state;  // nullptr while it is merged into
    core::AnchorDigest committed;
    std::map<core::Version, std::shared_ptr<Update>> updates;  // by base; the last is of the open round
    int queued = 0;
  };

  void Run();
  void MergeOne(const MergeJob& job);

  const core::FragmentMap map_;
  const MergeSettings settings_;
  const OnMerged merged_;
  mutable core::Mutex mutex_;
  std::condition_variable changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // merges, or tells of it
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::deque<MergeJob> queue_ ABSL_GUARDED_BY(mutex_);  // front is being merged
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace causeway::server
