// The files of an open journal, and the writes of its thread (journal.h describes the files).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/store/journal.h"
#include "server/store/log_file.h"
#include "server/store/mirror_directory.h"
#include "server/store/mirror_feed.h"
#include "server/store/prune.h"
#include "server/store/records.h"
#include "server/store/rows.h"
#include "server/store/schema.h"
#include "server/store/segments.h"
#include "server/store/sqlite.h"
#include "server/store/state_directory.h"
#include "server/store/state_log.h"
#include "server/store/sync_meter.h"

namespace causeway::server {

// Syncs the writes of a relaxed journal on a thread of its own, so that commits do not wait for the disk.
//
//   journal's thread   write … write … Begin(files, mark) ─ write … write ─ TakeSynced ─► mark
//   its own                              └─ fdatasync of each ─┘
//
// One Begin is in progress at a time. Thread-safe.
class LateSync {
 public:
  // `syncs` outlives it. `done` is called on its thread after each sync, with the result.
  LateSync(SyncMeter* syncs, std::function<void(const absl::Status&)> done);
  ~LateSync();  // finishes a sync in progress first

  bool idle() const;
  // Syncs the files in this order; then the log is durable up to `mark`. Needs idle().
  void Begin(Segments::Files files, const LogMark& mark);
  std::optional<LogMark> TakeSynced();  // the mark synced since the last call
  void Finish();                        // returns when it is idle

 private:
  void Run();

  SyncMeter* const syncs_;
  const std::function<void(const absl::Status&)> done_;
  mutable core::Mutex mutex_;
  core::Condition changed_;
  std::optional<Segments::Files> files_ ABSL_GUARDED_BY(mutex_);  // until they are synced
  LogMark mark_ ABSL_GUARDED_BY(mutex_);
  std::optional<LogMark> synced_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

// Everything that one call hands to the journal's thread.
struct JournalItem {
  JournalEntry entry;
  std::optional<RunRecord> run;
  std::optional<SnapshotRow> snapshot;
  bool renew_log = false;
  std::shared_ptr<MirrorFeed> feed;  // begins
  std::string standby, formerly;     // its address, and another that it had before; empty: none
  absl::Status end;                  // not OK: the journal ends here
  // The places of the payloads of `admitted` and `merged`.
  std::vector<Extent> contributions;
  std::vector<Extent> updates;

  int64_t payload_bytes() const;
  int64_t event_bytes() const;
};

struct JournalFiles {
  std::unique_ptr<StateDirectory> directory;
  JournalIdentity identity;

  // Used for writing, by the journal's thread.
  std::unique_ptr<Database> database;
  std::unique_ptr<StateLog> log;
  std::unique_ptr<Segments> segments;
  LogMark framed;  // the log's end, noted in the newest payload's frame
  SyncMeter syncs;
  std::unique_ptr<LateSync> late;  // null unless the journal is relaxed
  std::optional<core::Clock::TimePoint> sync_due;
  RulesRows rules;
  EventRows events;
  std::unique_ptr<MirrorFeeds> mirrors;  // constant from OpenAll on
  bool may_have_lost_its_end = false;    // see JournalIdentity
  bool run_config_written = false;

  // Used for reading, by all threads, without waiting for the writer's flushes.
  core::Mutex reader_mutex;
  std::unique_ptr<Database> reader ABSL_GUARDED_BY(reader_mutex);

  std::string snapshot(const std::string& name) const { return directory->snapshots() + "/" + name; }

  absl::StatusOr<std::vector<SnapshotRow>> Snapshots(core::FragmentId fragment) {
    const core::MutexLock lock(reader_mutex);
    return ReadSnapshotRows(*reader, fragment);
  }

  // Everything that a start reads before it changes anything.
  struct Readout {
    StateLog::Found log;
    std::map<int64_t, int64_t> segment_ends;
    uint64_t payloads_after = 0;          // the log's last record when the newest payload was appended
    std::optional<StandbyNote> promoted;  // the directory was a standby's
  };

  absl::Status OpenAll(JournalOptions& options);
  // `last`: everything after that record was lost with the machine's power.
  absl::Status Read(JournalOptions& options, std::optional<uint64_t> last, Readout& readout);
  absl::Status ReadWhatWasSynced(JournalOptions& options, Readout& readout);
  // Why a start would refuse the directory, as it is up to that record; changes nothing. `directory` is open.
  absl::Status CheckStart(JournalOptions options, uint64_t last, bool handed_over);
  absl::Status ReadCopy(JournalOptions& options, const StandbyNote& note, Readout& readout);
  absl::Status BeginLog(const Readout& readout, const JournalOptions& options);
  absl::Status NoteCleanEnd();
  absl::Status Commit(const std::function<absl::Status()>& write);
  absl::Status Mind();
  absl::Status RenewLog();
  absl::Status CheckShard(const JournalOptions& options) const;
  // Payloads first, then one record of all their rows.
  absl::Status Write(std::vector<JournalItem>& batch, const JournalOptions& options);
  absl::Status AppendPayloads(JournalItem& item);
  void ShowPayloads(const std::vector<JournalItem>& batch) const;
  absl::Status SyncPayloads();
  absl::Status SyncAll();                             // including the files left to `late`
  std::optional<core::Clock::TimePoint> due() const;  // when Mind must be called next
  absl::Status WriteRows(const JournalItem& item, const JournalOptions& options);
  absl::Status Prune(core::FragmentId fragment, const PruneLimits& limits);
};

}  // namespace causeway::server
