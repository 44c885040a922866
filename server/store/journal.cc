#include "server/store/journal.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/fault_point.h"
#include "formats/atomic_file.h"
#include "server/store/load.h"
#include "server/store/prune.h"
#include "server/store/rows.h"
#include "server/store/schema.h"
#include "server/store/segments.h"
#include "server/store/snapshots.h"
#include "server/store/state_directory.h"

namespace causeway::server {
namespace {

int64_t Bytes(const std::vector<ChunkPtr>& chunks) {
  int64_t bytes = 0;
  for (const ChunkPtr& chunk : chunks) bytes += static_cast<int64_t>(chunk->size());
  return bytes;
}

bool IsEmptyFolder(const std::string& directory) {
  std::error_code error;
  return std::filesystem::directory_iterator(directory, error) == std::filesystem::directory_iterator();
}

}  // namespace

struct Journal::Item {
  JournalEntry entry;
  std::optional<RunRecord> run;
  std::optional<SnapshotRow> snapshot;
  absl::Status end;  // not OK: the journal ends here
  // Where the payloads of `admitted` and `merged` lie.
  std::vector<Extent> contributions;
  std::vector<Extent> updates;

  int64_t payload_bytes() const {
    int64_t bytes = 0;
    for (const ContributionRecord& contribution : entry.admitted) bytes += Bytes(contribution.chunks);
    for (const MergedRecord& merged : entry.merged) bytes += Bytes(merged.update);
    return bytes;
  }
};

struct Journal::Files {
  std::unique_ptr<StateDirectory> directory;
  JournalIdentity identity;

  // The journal's thread writes.
  std::unique_ptr<Database> database;
  std::unique_ptr<Segments> segments;
  RulesRows rules;
  bool run_config_written = false;

  // Everyone reads, beside it and without waiting for its flushes.
  core::Mutex reader_mutex;
  std::unique_ptr<Database> reader ABSL_GUARDED_BY(reader_mutex);

  std::string snapshot(const std::string& name) const { return directory->snapshots() + "/" + name; }

  absl::StatusOr<std::vector<SnapshotRow>> Snapshots(core::FragmentId fragment) {
    const core::MutexLock lock(reader_mutex);
    return ReadSnapshotRows(*reader, fragment);
  }

  absl::Status OpenAll(JournalOptions& options);
  absl::Status CheckShard(const JournalOptions& options) const;
  absl::Status AppendPayloads(Item& item);
  absl::Status WriteRows(const Item& item, const JournalOptions& options);
  absl::Status Prune(core::FragmentId fragment, const JournalOptions& options);
};

absl::Status Journal::Files::OpenAll(JournalOptions& options) {
  ASSIGN_OR_RETURN(directory, StateDirectory::Open(options.directory));
  RETURN_IF_ERROR(directory->CheckRoom(0, options.min_free_bytes));
  const bool new_journal = IsEmptyFolder(directory->segments()) && IsEmptyFolder(directory->snapshots());
  const std::string path = directory->path() + "/journal.sqlite";
  ASSIGN_OR_RETURN(database, OpenJournalDatabase(path, new_journal));
  // First everything that may refuse, then what changes something.
  ASSIGN_OR_RETURN(const std::optional<std::string> run_config, ReadMeta(*database, "run_config"));
  if (run_config && options.accept) {
    ASSIGN_OR_RETURN(options.run_config, options.accept(*run_config));
  }
  if (run_config) RETURN_IF_ERROR(CheckShard(options));
  RETURN_IF_ERROR(CheckNumerics(*database));
  ASSIGN_OR_RETURN(const auto ends, LoadSegmentEnds(*database));
  RETURN_IF_ERROR(Segments::Check(directory->segments(), ends));
  ASSIGN_OR_RETURN(identity, BeginLife(*database, options.new_lineage));
  RETURN_IF_ERROR(ForgetUnfinishedSeed(*database));
  ASSIGN_OR_RETURN(const std::vector<std::string> snapshots, LiveSnapshots(*database));
  RETURN_IF_ERROR(RemoveFilesBut(directory->snapshots(), snapshots));
  ASSIGN_OR_RETURN(segments, Segments::Open(directory->segments(), options.segment_bytes, ends));
  const core::MutexLock lock(reader_mutex);
  ASSIGN_OR_RETURN(reader, Database::Open(path, Database::Mode::kReadOnly));
  return formats::SyncFolderOf(path);
}

// Of a directory that is in use. Before there were shards nothing said so.
absl::Status Journal::Files::CheckShard(const JournalOptions& options) const {
  ASSIGN_OR_RETURN(const std::optional<std::string> stored, ReadMeta(*database, "shard"));
  const std::string of = stored.value_or(core::Shard().Text());
  if (of == options.shard.Text()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(options.directory, " holds the state of ", of, ", this is ",
                                                    options.shard.Text(),
                                                    ": the number of shards stays the same for a run"));
}

absl::Status Journal::Files::AppendPayloads(Item& item) {
  for (ContributionRecord& contribution : item.entry.admitted) {
    ASSIGN_OR_RETURN(Extent extent, segments->Append(PayloadKind::kContribution, contribution.chunks));
    item.contributions.push_back(std::move(extent));
    contribution.chunks.clear();
  }
  for (MergedRecord& merged : item.entry.merged) {
    ASSIGN_OR_RETURN(const std::optional<MergedRow> row, ReadMerged(*database, merged.fragment, merged.base + 1));
    Extent extent;
    if (row && row->update.segment != 0) {
      extent = row->update;
    } else {
      ASSIGN_OR_RETURN(extent, segments->Append(PayloadKind::kUpdate, merged.update));
    }
    item.updates.push_back(std::move(extent));
    merged.update.clear();
  }
  return absl::OkStatus();
}

absl::Status Journal::Files::WriteRows(const Item& item, const JournalOptions& options) {
  const int64_t now = core::SystemClock().UnixMs();
  const JournalEntry& entry = item.entry;
  if (!run_config_written) {
    RETURN_IF_ERROR(WriteMeta(*database, "run_config", Blob{options.run_config}));
    RETURN_IF_ERROR(WriteMeta(*database, "shard", options.shard.Text()));
    run_config_written = true;
  }
  if (entry.model) RETURN_IF_ERROR(WriteModel(*database, *entry.model));
  if (item.run) RETURN_IF_ERROR(WriteRun(*database, *item.run));
  for (size_t i = 0; i < entry.admitted.size(); ++i) {
    RETURN_IF_ERROR(WriteContribution(*database, entry.admitted[i], item.contributions[i]));
  }
  for (const RoundRecord& round : entry.decided) RETURN_IF_ERROR(WriteRound(*database, round, now));
  for (size_t i = 0; i < entry.merged.size(); ++i) {
    RETURN_IF_ERROR(WriteMerged(*database, entry.merged[i], item.updates[i]));
  }
  if (entry.state) RETURN_IF_ERROR(rules.Write(*database, *entry.state));
  if (entry.eval_loss) RETURN_IF_ERROR(WriteEvalLoss(*database, *entry.eval_loss));
  if (entry.data) RETURN_IF_ERROR(WriteData(*database, *entry.data));
  for (const Event& event : entry.events) RETURN_IF_ERROR(WriteEvent(*database, event, now));
  if (!item.snapshot) return absl::OkStatus();
  return WriteSnapshotRow(*database, *item.snapshot);
}

absl::Status Journal::Files::Prune(core::FragmentId fragment, const JournalOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> superfluous,
                   PruneRows(*database, fragment, {options.keep, options.max_update_log_bytes}));
  for (const std::string& file : superfluous) {
    if (::unlink(snapshot(file).c_str()) != 0) return formats::FileError("remove", snapshot(file));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> live, LiveSegments(*database));
  return segments->RemoveAllBut(live);
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(JournalOptions options) {
  auto files = std::make_unique<Files>();
  RETURN_IF_ERROR(files->OpenAll(options));
  return std::unique_ptr<Journal>(new Journal(std::move(options), std::move(files)));
}

Journal::Journal(JournalOptions options, std::unique_ptr<Files> files)
    : options_(std::move(options)), files_(std::move(files)), thread_([this] { Run(); }) {}

Journal::~Journal() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

uint64_t Journal::epoch() const { return files_->identity.epoch; }
const std::string& Journal::lineage() const { return files_->identity.lineage; }
const std::vector<std::string>& Journal::former_lineages() const { return files_->identity.former_lineages; }

absl::StatusOr<StoredRun> Journal::Load() const {
  const core::MutexLock lock(files_->reader_mutex);
  return LoadRun(*files_->reader, options_.shard);
}

// ---- The queue ----

uint64_t Journal::Enqueue(Item item) {
  const core::MutexLock lock(mutex_);
  queue_.push_back(std::move(item));
  changed_.NotifyAll();
  return ++enqueued_;
}

absl::Status Journal::WaitFor(uint64_t ticket) const {
  CHECK(!thread_.IsCurrent());  // it would wait for itself
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_ >= ticket; });
  return status_;
}

void Journal::Commit(JournalEntry entry) { Enqueue({.entry = std::move(entry)}); }

void Journal::Flush() {
  uint64_t ticket = 0;
  {
    const core::MutexLock lock(mutex_);
    ticket = enqueued_;
  }
  WaitFor(ticket).IgnoreError();
}

absl::Status Journal::status() const {
  const core::MutexLock lock(mutex_);
  return status_;
}

SyncFigures Journal::syncs() const { return syncs_.figures(); }

absl::Status Journal::Begin(const RunRecord& run) { return WaitFor(Enqueue({.run = run})); }

// ---- The journal's thread ----

void Journal::Run() {
  while (true) {
    std::vector<Item> batch;
    absl::Status status;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch.swap(queue_);
      status = status_;
    }
    const size_t items = batch.size();
    if (status.ok()) {
      status = WriteAndTell(batch);
      if (!status.ok()) Fail(status);
    }
    batch.clear();  // what its callbacks hold goes before anyone is told that they are done
    const core::MutexLock lock(mutex_);
    finished_ += items;
    changed_.NotifyAll();
  }
}

void Journal::Fail(const absl::Status& status) {
  {
    const core::MutexLock lock(mutex_);
    status_ = status;
  }
  if (options_.failed) options_.failed(status);
}

absl::Status Journal::WriteAndTell(std::vector<Item>& batch) {
  const auto last = std::find_if(batch.begin(), batch.end(), [](const Item& item) { return !item.end.ok(); });
  const absl::Status end = last == batch.end() ? absl::OkStatus() : last->end;
  batch.erase(last, batch.end());
  RETURN_IF_ERROR(Write(batch));
  for (Item& item : batch) {
    for (size_t i = 0; i < item.entry.merged.size(); ++i) {
      if (item.entry.merged[i].stored) item.entry.merged[i].stored(item.updates[i]);
    }
    if (item.entry.durable) item.entry.durable();
  }
  for (const Item& item : batch) {
    if (!item.snapshot) continue;
    RETURN_IF_ERROR(files_->Prune(item.snapshot->fragment, options_));
    core::FaultPoint("after_prune");
  }
  return end;
}

absl::Status Journal::Write(std::vector<Item>& batch) {
  if (batch.empty()) return absl::OkStatus();
  int64_t payload_bytes = 0;
  bool admits = false, decides = false, merges = false;
  for (const Item& item : batch) {
    payload_bytes += item.payload_bytes();
    admits |= !item.entry.admitted.empty();
    decides |= !item.entry.decided.empty();
    merges |= !item.entry.merged.empty();
  }
  if (payload_bytes > 0) {
    RETURN_IF_ERROR(files_->directory->CheckRoom(payload_bytes, options_.min_free_bytes));
    for (Item& item : batch) RETURN_IF_ERROR(files_->AppendPayloads(item));
    RETURN_IF_ERROR(syncs_.Time([this] { return files_->segments->Sync(); }));
    core::FaultPoint("after_segment_sync");
  }
  if (merges) core::FaultPoint("before_digest_record");
  ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(*files_->database));
  for (const Item& item : batch) RETURN_IF_ERROR(files_->WriteRows(item, options_));
  RETURN_IF_ERROR(syncs_.Time([&transaction] { return transaction.Commit(); }));
  if (admits) core::FaultPoint("after_row");
  if (decides) core::FaultPoint("after_decision");
  return absl::OkStatus();
}

// ---- Snapshots and reading ----

absl::Status Journal::SaveSnapshot(core::FragmentId fragment, const core::FragmentState& state, uint64_t digest) {
  RETURN_IF_ERROR(status());
  ASSIGN_OR_RETURN(const std::vector<SnapshotRow> earlier, files_->Snapshots(fragment));
  if (!earlier.empty()) {
    CHECK(state.version >= earlier.back().version);
    const bool repeated = state.version == earlier.back().version;
    if (repeated && digest == earlier.back().digest) return absl::OkStatus();
    CHECK(!repeated || state.version == 0);  // only an initial state may be replaced, by the next seed
  }
  if (absl::Status room = files_->directory->CheckRoom(SnapshotBytes(state), options_.min_free_bytes); !room.ok()) {
    WaitFor(Enqueue({.end = room})).IgnoreError();
    return room;
  }
  const std::string path = files_->snapshot(SnapshotFileName(fragment, state.version));
  ASSIGN_OR_RETURN(const uint64_t hash, WriteSnapshot(path, fragment, state, digest));
  return WaitFor(Enqueue({.snapshot = SnapshotRow{fragment, state.version, digest, hash}}));
}

absl::StatusOr<core::FragmentState> Journal::LoadSnapshot(core::FragmentId fragment, core::Version version) const {
  ASSIGN_OR_RETURN(const std::vector<SnapshotRow> snapshots, files_->Snapshots(fragment));
  for (const SnapshotRow& row : snapshots) {
    if (row.version != version) continue;
    return ReadSnapshot(files_->snapshot(SnapshotFileName(fragment, version)), version, row.hash);
  }
  return absl::NotFoundError(
      absl::StrCat(files_->directory->path(), " has no snapshot of fragment ", fragment, " at version ", version));
}

absl::StatusOr<std::string> Journal::ReadChunk(const Extent& extent, size_t index) const {
  return files_->segments->ReadChunk(extent, index);
}

absl::StatusOr<std::vector<Event>> Journal::History(int64_t after_id, int64_t limit) const {
  const core::MutexLock lock(files_->reader_mutex);
  return LoadEvents(*files_->reader, after_id, limit);
}

absl::Status Journal::WriteAddresses(const std::string& grpc, const std::string& http) const {
  return files_->directory->WriteAddresses(grpc, http);
}

}  // namespace causeway::server
