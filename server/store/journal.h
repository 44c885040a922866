// What the coordinator must find again after `kill -9` at any instant, and the lock that keeps a second one out.
//
//   <state_dir>/lock, addresses.json         held while a coordinator runs here; where it listens
//   <state_dir>/log/000001.log, high_water   the truth: chained records of what commits changed (state_log.h)
//   <state_dir>/journal.sqlite               an index of the log, made anew at each start: rows of
//                                            sites, contributions, rounds, snapshots, events (schema.h)
//   <state_dir>/segments/000001.segment      payloads: encoded contributions or updates, append-only
//   <state_dir>/snapshots/fragment-3-000017.safetensors      W, v, ē of fragment 3 at version 17
//
//   Commit ─► queue ─► journal thread: append payloads ─ fdatasync ─ one record ─ fdatasync ─► rows, `durable` of each
//
// A record is durable only after the payloads it names. Entries are taken in the order of Commit, several at once where
// they pile up, so that one flush of the disk serves all. A failed write ends the journal: nothing after it becomes
// durable, and `failed` is told. Two entries that admit the same contribution, or a round that merges what was never
// admitted, are bugs of the caller and end it, too.
//
// Room for a standby that follows: the ids of the table events rise with every transaction that has one, so that a
// reader of the database can ask for what came after the last id it saw, and copy the segments that the rows name.
// Thread-safe unless a call says otherwise. Source: docs/architecture.md, section "Durability".
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
#include "core/limits.h"
#include "core/mutex.h"
#include "core/shard.h"
#include "core/thread.h"
#include "server/store/records.h"
#include "server/store/scrubber.h"
#include "server/store/snapshots.h"
#include "server/store/sync_meter.h"

namespace causeway::server {

struct JournalFiles;
struct JournalItem;

struct JournalOptions {
  std::string directory;
  std::string run_config;            // serialized, not looked into; kept from the first Commit or Begin of this life on
  int64_t keep = 3;                  // snapshots of a fragment
  int64_t max_update_log_bytes = 0;  // of all fragments; 0: no update from before a snapshot stays
  int64_t min_free_bytes = 0;        // the journal ends before its disk has less; 0: it does not look
  bool new_lineage = false;          // the directory was restored from a backup
  core::Shard shard;                 // whose fragments are stored here; another one's directory is refused
  // Entries count as durable when they are written; they are on the disk core::kRelaxedSyncMs later.
  bool relaxed = false;
  int64_t segment_bytes = core::kSegmentBytes;
  // Whether the run of the life before is this one: the config that takes the place of run_config, serialized. A status
  // that it gives is Open's, and nothing has changed then.
  std::function<absl::StatusOr<std::string>(const std::string& run_config)> accept;
  std::function<void(const absl::Status&)> failed;  // once, on the journal's thread
  int64_t scrub_bytes_per_s = 0;  // how fast what lies on the disk is read again (scrubber.h); 0: never
  std::function<void(const DiskDamage&)> damaged;  // once for each place, on the scrubber's thread
};

class Journal {
 public:
  // Takes the lock, reads the log, begins a file of it, raises the epoch (durably). FAILED_PRECONDITION: another
  // coordinator runs there, its files are another shard's, or rounds to replay were decided by another numerics
  // version; DATA_LOSS names the damaged file; RESOURCE_EXHAUSTED: less than min_free_bytes are free. A call that fails
  // changes nothing of what was stored.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(JournalOptions options);
  ~Journal();  // what was committed becomes durable first

  uint64_t epoch() const;
  const std::string& lineage() const;
  const std::vector<std::string>& former_lineages() const;
  const std::string& continues() const;  // the former lineage whose versions are bit by bit this one's; empty: none
  const std::vector<std::string>& repaired() const;  // damage that Open has made good: one sentence each, with the file

  // What earlier lives stored. Once, before the first Commit.
  absl::StatusOr<StoredRun> Load() const;

  void Commit(JournalEntry entry);  // returns at once; from `durable`, too
  // Entries with more than core::kMaxQueuedEventBytes of events wait for the disk: who can should bring no more.
  bool full() const;
  void Flush();                 // returns when everything committed before is durable and told, or has failed
  absl::Status status() const;  // OK, or why the journal has ended
  SyncFigures syncs() const;    // of its commits
  ScrubFigures scrub() const;

  // The seed: run record, and the snapshots of version 0 exist already. Blocks until durable; Load then says `seeded`.
  // `entry` becomes durable with it.
  absl::Status Begin(const RunRecord& run, JournalEntry entry = {});

  // Writes a snapshot of the fragment and prunes what it makes superfluous: older snapshots beyond `keep`,
  // contributions of rounds up to its version, updates up to it beyond max_update_log_bytes (the newest stay), segments
  // without live payload. Blocks; one fragment's calls come from one thread, versions rise (a repeat of the newest does
  // nothing). Needs everything of the rounds up to its version committed before. Too little room for it
  // (min_free_bytes) ends the journal.
  absl::Status SaveSnapshot(core::FragmentId fragment, const core::FragmentState& state, uint64_t digest);

  // Snapshots of that version stay until another one is named, or to the end of this life. FAILED_PRECONDITION, with
  // those that there are, if a fragment has none.
  absl::Status Keep(core::Version version, int num_fragments);

  // DATA_LOSS names the file that is missing or is not what was written.
  absl::StatusOr<core::FragmentState> LoadSnapshot(core::FragmentId fragment, core::Version version) const;

  // Of the newest one it is there; an older one goes with a later SaveSnapshot, whoever has it open may read on.
  std::string SnapshotPath(core::FragmentId fragment, core::Version version) const {
    return options_.directory + "/snapshots/" + SnapshotFileName(fragment, version);
  }

  // The bytes as they were committed. NOT_FOUND: pruned meanwhile; DATA_LOSS: they are damaged, with file and place.
  absl::StatusOr<std::string> ReadChunk(const Extent& extent, size_t index) const;

  // At most `limit` events with an id above `after_id`, oldest first, and no further one once their texts come to
  // core::kMaxHistoryAnswerBytes; of one kind alone where it is given. The newest kMaxHistoryEvents are kept, and of
  // kind "command" as many as rows.h says.
  absl::StatusOr<std::vector<Event>> History(int64_t after_id, int64_t limit, const std::string& kind = "") const;

  absl::Status WriteAddresses(const std::string& grpc, const std::string& http) const;

 private:
  Journal(JournalOptions options, std::unique_ptr<JournalFiles> files);
  void Run();  // the journal's thread
  void Fail(const absl::Status& status);
  absl::Status WriteAndTell(std::vector<JournalItem>& batch);
  absl::Status Write(std::vector<JournalItem>& batch);
  uint64_t Enqueue(JournalItem item);
  absl::Status WaitFor(uint64_t ticket) const;
  void NoteDamage(const DiskDamage& damage);

  const JournalOptions options_;
  const std::unique_ptr<JournalFiles> files_;

  mutable core::Mutex mutex_;
  mutable core::Condition changed_;
  std::vector<JournalItem> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;  // items ever, and those that are durable and told, or have failed
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of events that are not durable
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool synced_ ABSL_GUARDED_BY(mutex_) = false;  // late, since the thread has looked
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::atomic<core::Version> kept_ = -1;

  core::Thread thread_;  // uses everything above
  std::unique_ptr<ScrubThread> scrub_;
};

}  // namespace causeway::server
