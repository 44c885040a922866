// The coordinator's durable state, which survives `kill -9` at any instant, and the lock that keeps a second
// coordinator out.
//
//   <state_dir>/lock, addresses.json         held while a coordinator runs here; where it listens
//   <state_dir>/log/000001.log, high_water   the truth: chained records of commits' changes (state_log.h)
//   <state_dir>/journal.sqlite               an index of the log, rebuilt at each start: rows of
//                                            sites, contributions, rounds, snapshots, events (schema.h)
//   <state_dir>/segments/000001.segment      payloads: encoded contributions or updates, append-only
//   <state_dir>/snapshots/fragment-3-000017.safetensors      W, v, ē of fragment 3 at version 17
//
//   Commit ─► queue ─► journal thread: append payloads ─ fdatasync ─ one record ─ fdatasync ─► rows, `durable` of each
//
// A record becomes durable only after the payloads that it names. Entries are written in the order of Commit, several
// at once if they queue up, so that one flush of the disk serves them all. A failed write ends the journal: nothing
// after it becomes durable, and `failed` is called. Two entries that admit the same contribution, or a round that
// merges a contribution never admitted, are bugs of the caller and end the journal, too.
//
// A standby is sent the same files, as they grow (mirror_feed.h); no commit waits for it. Thread-safe unless a call says otherwise. Source: docs/durability.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fragment_state.h"
#include "core/ids.h"
#include "core/limits.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/store/copies.h"
#include "server/store/mirror_feed.h"
#include "server/store/records.h"
#include "server/store/scrubber.h"
#include "server/store/snapshots.h"
#include "server/store/sync_meter.h"

namespace causeway::server {

struct JournalFiles;
struct JournalItem;
class JournalQueue;

struct JournalOptions {
  std::string directory;
  std::string run_config;            // serialized, opaque; stored from the first Commit or Begin of this life on
  int64_t keep = 3;                  // number of snapshots kept of each fragment
  int64_t max_update_log_bytes = 0;  // bound over all fragments; 0: no update older than a snapshot stays
  int64_t min_free_bytes = 0;        // the journal ends before its disk has less; 0: not checked
  bool new_lineage = false;          // the directory was restored from a backup
  CopyOptions copy;
  std::function<void(const std::string&)> progress = [](const std::string&) {};  // of long work: sentences
  core::Shard shard;  // the shard whose state is stored here; another one's directory is refused
  // Entries count as durable once written; they reach the disk within core::kRelaxedSyncMs.
  bool relaxed = false;
  int64_t segment_bytes = core::kSegmentBytes;
  // Checks that the previous life's run, which may have started, is this one, and returns the serialized config that
  // replaces run_config. If it returns an error, so does Open, and nothing has changed.
  std::function<absl::StatusOr<std::string>(const std::string& run_config, bool started)> accept;
  std::function<void(const absl::Status&)> failed;  // once, on the journal's thread
  int64_t scrub_bytes_per_s = 0;                    // rate at which stored data is reread (scrubber.h); 0: never
  std::function<void(const DiskDamage&)> damaged;   // once for each place, on the scrubber's thread
};

struct JournalFigures {
  SyncFigures syncs;  // of its commits
  ScrubFigures scrub;
  CopyFigures copies;
};

class Journal {
 public:
  // Takes the lock, reads the log, begins a new log file, raises the epoch (durably). FAILED_PRECONDITION: another
  // coordinator runs there, it is a standby's that was not promoted, its files belong to another shard, or rounds to replay were decided by another numerics
  // version; DATA_LOSS names the damaged file; RESOURCE_EXHAUSTED: less than min_free_bytes are free. A failed call
  // changes nothing that was stored.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(JournalOptions options);
  ~Journal();  // everything committed becomes durable first

  const JournalIdentity& identity() const;

  // RETURNS: the state that earlier lives stored. REQUIRES: no Load and no Commit before.
  absl::StatusOr<StoredRun> Load() const;

  // `handed_to` ends the journal: `status` is ABORTED then, and says so.
  void Commit(JournalEntry entry);  // returns at once; may be called from `durable`, too
  // Entries with more than core::kMaxQueuedEventBytes of events wait for the disk: callers that can wait should add no
  // more.
  bool full() const;
  // The next life, too, may have to make good the end that an earlier one lost (JournalIdentity).
  void EndsInDoubt(bool in_doubt = true) { ends_in_doubt_ = in_doubt; }
  void Flush();                 // returns when everything committed before is durable and notified, or has failed
  absl::Status status() const;  // OK, or why the journal has ended
  JournalFigures figures() const;
  void BeginCopies();  // this life serves its run; one that only completes its state makes none

  // Records the seed; the snapshots of version 0 must exist already. Blocks until durable; Load then says `seeded`.
  // `entry` becomes durable with it.
  absl::Status Begin(const RunRecord& run, JournalEntry entry = {});

  // Writes a snapshot of the fragment and prunes everything that it makes superfluous: older snapshots beyond `keep`,
  // contributions of rounds up to its version, updates up to it beyond max_update_log_bytes (the newest stay), segments
  // without live payload. Blocks; one fragment's calls come from one thread, with rising versions (a repeat of the
  // newest does nothing). Too little disk space (min_free_bytes) ends the journal.
  // REQUIRES: everything about the rounds up to its version was committed.
  absl::Status SaveSnapshot(core::FragmentId fragment, const core::FragmentState& state, uint64_t digest);

  // Keeps snapshots of that version until another version is named, or to the end of this life. FAILED_PRECONDITION,
  // listing the versions that exist, if a fragment has no such snapshot.
  absl::Status Keep(core::Version version, int num_fragments);

  // DATA_LOSS names the file that is missing or differs from what was written.
  absl::StatusOr<core::FragmentState> LoadSnapshot(core::FragmentId fragment, core::Version version) const;

  // The newest snapshot's file exists; an older one is removed by a later SaveSnapshot, but a reader that has it open
  // may read on.
  std::string SnapshotPath(core::FragmentId fragment, core::Version version) const {
    return options_.directory + "/snapshots/" + SnapshotFileName(fragment, version);
  }

  // The bytes as committed. NOT_FOUND: pruned meanwhile; DATA_LOSS: they are damaged, naming file and offset.
  absl::StatusOr<std::string> ReadChunk(const Extent& extent, size_t index) const;

  // At most `limit` events with an id above `after_id`, oldest first, stopping once their texts reach
  // core::kMaxHistoryAnswerBytes; only those of `kind` if it is given. The newest kMaxHistoryEvents are kept, and of
  // kind "command" the number given in rows.h.
  absl::StatusOr<std::vector<Event>> History(int64_t after_id, int64_t limit, const std::string& kind = "") const;

  // Sends the feed all files, and what becomes of them, until it ends. RETURNS: the place of its standby among all
  // coordinators that the run has known. `formerly`: its address before; empty: none.
  absl::StatusOr<int> Mirror(const std::shared_ptr<MirrorFeed>& feed, std::string formerly = "");
  MirrorFeeds& mirrors() const;

 private:
  Journal(JournalOptions options, std::unique_ptr<JournalFiles> files);
  void Run();  // the journal's thread
  void Fail(const absl::Status& failure);
  absl::Status WriteAndTell(std::vector<JournalItem>& batch);
  absl::Status AddAndWait(JournalItem item);

  const JournalOptions options_;
  const std::unique_ptr<JournalFiles> files_;

  const std::unique_ptr<JournalQueue> queue_;
  std::atomic<core::Version> kept_ = -1;
  std::atomic<bool> ends_in_doubt_ = false;
  std::unique_ptr<Copies> copies_;  // null: none are made

  core::Thread thread_;  // uses everything above
  std::unique_ptr<ScrubThread> scrub_;
};

}  // namespace causeway::server
