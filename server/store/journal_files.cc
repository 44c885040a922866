#include "server/store/journal_files.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/fault_point.h"
#include "core/limits.h"
#include "formats/atomic_file.h"
#include "server/store/change_set.h"
#include "server/store/load.h"

namespace causeway::server {

LateSync::LateSync(SyncMeter* syncs, std::function<void(const absl::Status&)> done)
    : syncs_(syncs), done_(std::move(done)), thread_([this] { Run(); }) {}

LateSync::~LateSync() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

bool LateSync::idle() const {
  const core::MutexLock lock(mutex_);
  return !files_;
}

void LateSync::Begin(Segments::Files files, const LogMark& mark) {
  const core::MutexLock lock(mutex_);
  CHECK(!files_);
  files_ = std::move(files);
  mark_ = mark;
  changed_.NotifyAll();
}

std::optional<LogMark> LateSync::TakeSynced() {
  const core::MutexLock lock(mutex_);
  return std::exchange(synced_, std::nullopt);
}

void LateSync::Finish() {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !files_; });
}

void LateSync::Run() {
  while (true) {
    Segments::Files files;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || files_; });
      if (!files_) return;
      files = *files_;
    }
    const absl::Status status = syncs_->Time([&] { return Segments::SyncFiles(files); });
    {
      const core::MutexLock lock(mutex_);
      if (status.ok()) synced_ = mark_;
      files_.reset();
      changed_.NotifyAll();
    }
    done_(status);
  }
}
namespace {

int64_t Bytes(const std::vector<ChunkPtr>& chunks) {
  int64_t bytes = 0;
  for (const ChunkPtr& chunk : chunks) bytes += static_cast<int64_t>(chunk->size());
  return bytes;
}

bool IsEmptyFolder(const std::string& directory) {
  return formats::NamesIn(directory).value_or(std::vector<std::string>()).empty();
}

}  // namespace

int64_t JournalItem::event_bytes() const {
  int64_t bytes = sizeof(JournalItem);
  for (const Event& event : entry.events) bytes += std::ssize(event.text) + int64_t{sizeof(Event)};
  return bytes;
}

int64_t JournalItem::payload_bytes() const {
  int64_t bytes = 0;
  for (const ContributionRecord& contribution : entry.admitted) bytes += Bytes(contribution.chunks);
  for (const MergedRecord& merged : entry.merged) bytes += Bytes(merged.update);
  return bytes;
}

absl::Status JournalFiles::OpenAll(JournalOptions& options) {
  ASSIGN_OR_RETURN(directory, StateDirectory::Open(options.directory));
  RETURN_IF_ERROR(directory->CheckRoom(0, options.min_free_bytes));
  std::error_code error;
  std::filesystem::remove_all(options.directory + "/copying", error);  // of a copy that was not finished
  if (!options.copy.restore_from.empty()) {
    ASSIGN_OR_RETURN(const std::string set, RestoreCopy(options.copy.restore_from, options.directory,
                                                        options.copy.run_id, options.shard, options.progress));
    options.progress(set.empty()
                         ? "--restore_from: restores nothing, since the state directory has a state, which goes on"
                         : absl::StrCat("was restored from the copy ", set, "; it begins a new lineage"));
  }
  // All checks that may refuse come first, then all changes.
  Readout readout;
  mirrors = std::make_unique<MirrorFeeds>(options.directory);
  ASSIGN_OR_RETURN(const std::optional<StandbyNote> standby, ReadStandbyNote(options.directory));
  absl::Status read = standby ? ReadCopy(options, *standby, readout) : Read(options, std::nullopt, readout);
  if ((!standby || standby->own) && absl::IsDataLoss(read) && ReadWhatWasSynced(options, readout).ok())
    read = absl::OkStatus();
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(BeginLog(readout, options));
  ASSIGN_OR_RETURN(const std::vector<std::string> snapshots, LiveSnapshots(*database));
  RETURN_IF_ERROR(RemoveSnapshotsBut(directory->snapshots(), snapshots));
  ASSIGN_OR_RETURN(segments, Segments::Open(directory->segments(), options.segment_bytes, readout.segment_ends));
  const core::MutexLock lock(reader_mutex);
  ASSIGN_OR_RETURN(reader, OpenIndex(options.directory, Database::Mode::kReadOnly));
  return absl::OkStatus();
}

absl::Status JournalFiles::Read(JournalOptions& options, std::optional<uint64_t> last, Readout& readout) {
  readout = Readout{.promoted = std::move(readout.promoted)};
  ASSIGN_OR_RETURN(const std::optional<StateLog::Found> found,
                   last ? StateLog::ReadUpTo(options.directory, *last) : StateLog::Read(options.directory));
  const bool expected_new = IsEmptyFolder(directory->segments()) && IsEmptyFolder(directory->snapshots());
  ASSIGN_OR_RETURN(database,
                   BuildIndex(options.directory, found ? found->changes : std::vector<std::string>(), expected_new));
  ASSIGN_OR_RETURN(const std::optional<std::string> run_config, ReadMeta(*database, "run_config"));
  if (run_config && options.accept) {
    ASSIGN_OR_RETURN(const std::optional<std::string> started, ReadMeta(*database, "started"));
    ASSIGN_OR_RETURN(options.run_config, options.accept(*run_config, started == "1"));
  }
  if (run_config) RETURN_IF_ERROR(CheckShard(options));
  ASSIGN_OR_RETURN(const std::optional<std::string> handed_to, ReadMeta(*database, kHandedTo));
  ASSIGN_OR_RETURN(const KnownStandbys known, ReadKnownStandbys(options.directory));
  const bool taken_back = !known.addresses.empty() && known.handed_to.empty();  // LeaderElsewhere
  if (!handed_to.value_or("").empty() && !readout.promoted && !taken_back) {
    return absl::FailedPreconditionError(
        absl::StrCat("--state_dir: the run of ", options.directory, " was handed over to ", *handed_to,
                     ": start this one with --standby_of=", *handed_to, ". Nothing was changed"));
  }
  RETURN_IF_ERROR(CheckNumerics(*database));
  ASSIGN_OR_RETURN(const std::optional<std::string> unsynced, ReadMeta(*database, kUnsyncedEnd));
  may_have_lost_its_end = unsynced == "1" || (readout.promoted && !readout.promoted->handed_over);
  ASSIGN_OR_RETURN(readout.segment_ends, LoadSegmentEnds(*database));
  // A log that has lost its end names segments that are gone since: the log is at fault.
  ASSIGN_OR_RETURN(readout.payloads_after, Segments::NewestSequence(directory->segments(), readout.segment_ends));
  if (!last) {
    RETURN_IF_ERROR(StateLog::CheckReaches(options.directory, found, readout.payloads_after, directory->segments()));
  }
  RETURN_IF_ERROR(Segments::Check(directory->segments(), readout.segment_ends));
  if (may_have_lost_its_end) {  // a file may be as long as it was, and lack pages
    ASSIGN_OR_RETURN(const std::vector<Extent> needed, LoadNeededPayloads(*database));
    RETURN_IF_ERROR(Segments::CheckPayloads(directory->segments(), needed));
  }
  readout.log = found.value_or(StateLog::Found());
  return absl::OkStatus();
}

// The life before had acknowledged what it wrote, and a machine that loses its power keeps any part of that. Only up to
// a mark is everything there.
absl::Status JournalFiles::ReadWhatWasSynced(JournalOptions& options, Readout& readout) {
  ASSIGN_OR_RETURN(uint64_t last, StateLog::ReadMark(options.directory));
  RETURN_IF_ERROR(Read(options, last, readout));
  if (!may_have_lost_its_end) return absl::DataLossError("that life synced each record before it acknowledged it");
  if (readout.payloads_after > last) {  // these have noted a later mark
    last = readout.payloads_after;
    RETURN_IF_ERROR(Read(options, last, readout));
  }
  StateLog::Found& log = readout.log;
  log.end.sequence = std::max(log.end.sequence, last);  // no number is used twice
  log.repaired.push_back(absl::StrCat(log.cut_path, ": was cut after byte ", log.cut_at, ", record ", last,
                                      " at the latest: the machine stopped before later ones were on the disk "
                                      "(durability.journal: relaxed)"));
  return absl::OkStatus();
}

absl::Status JournalFiles::CheckStart(JournalOptions options, uint64_t last, bool handed_over) {
  RETURN_IF_ERROR(directory->CheckRoom(0, options.min_free_bytes));
  Readout readout{.promoted = StandbyNote{.promoted = true, .handed_over = handed_over}};
  return Read(options, last, readout);
}

// Up to its mark a copy has all; what lies behind may lack anything.
absl::Status JournalFiles::ReadCopy(JournalOptions& options, const StandbyNote& note, Readout& readout) {
  if (!note.promoted) {
    return absl::FailedPreconditionError(
        absl::StrCat("--state_dir: ", options.directory, " is a copy that a standby of ", note.leader,
                     " keeps: start it with --standby_of=", note.leader,
                     ", and have it lead with causewayctl promote. Nothing was changed"));
  }
  readout.promoted = note;
  if (note.own) return Read(options, std::nullopt, readout);
  ASSIGN_OR_RETURN(const uint64_t last, StateLog::ReadMark(options.directory));
  RETURN_IF_ERROR(Read(options, last, readout));
  readout.log.repaired.push_back(absl::StrCat("leads from record ", last, " of ", note.leader, " on",
                                              note.handed_over ? ", which has handed over" : ""));
  return absl::OkStatus();
}

// From here on the directory belongs to this life.
absl::Status JournalFiles::BeginLog(const Readout& readout, const JournalOptions& options) {
  const std::string& path = directory->path();
  const std::optional<StandbyNote>& promoted = readout.promoted;
  ASSIGN_OR_RETURN(const std::optional<std::string> handed_to, ReadMeta(*database, kHandedTo));
  RETURN_IF_ERROR(WriteMeta(*database, kHandedTo, ""));
  ASSIGN_OR_RETURN(const std::string rows, AllRows(NewIndexPath(path), kTables));
  ASSIGN_OR_RETURN(const uint64_t last, LastEpoch(*database));
  ASSIGN_OR_RETURN(std::vector<std::string> coordinators, ReadCoordinators(*database));
  const bool turns = promoted && !promoted->own;
  const int place = turns ? promoted->place : OwnPlace(coordinators);
  uint64_t seen = promoted ? std::max(last, promoted->seen) : last;
  if (promoted && promoted->own && !handed_to.value_or("").empty()) {
    seen = std::max(seen, EpochOfPromotion(last, 0));  // the standby that it handed over to has taken that term
  }
  const uint64_t epoch = promoted ? EpochOfPromotion(seen, place) : last + 1;
  ASSIGN_OR_RETURN(log, StateLog::Begin(path, readout.log, epoch, rows));
  RETURN_IF_ERROR(Commit([&]() -> absl::Status {
    ASSIGN_OR_RETURN(identity, BeginLife(*database, epoch, options.new_lineage));
    identity.repaired = readout.log.repaired;
    identity.may_have_lost_its_end = may_have_lost_its_end && !options.new_lineage;
    if (identity.may_have_lost_its_end) RETURN_IF_ERROR(RecordFloor(*database, identity));
    const bool doubtful = options.relaxed || identity.may_have_lost_its_end;
    RETURN_IF_ERROR(WriteMeta(*database, kUnsyncedEnd, doubtful ? "1" : "0"));
    if (turns) RETURN_IF_ERROR(TurnStandby(*database, place, promoted->leader));
    return ForgetUnfinishedSeed(*database);
  }));
  ASSIGN_OR_RETURN(coordinators, ReadCoordinators(*database));
  mirrors->Know(coordinators);
  if (!coordinators.empty()) RETURN_IF_ERROR(WriteKnownStandbys(path, {mirrors->known(), ""}));
  RETURN_IF_ERROR(log->Mark());  // it says whether later ones may be lost
  if (promoted) RETURN_IF_ERROR(RemoveStandbyNote(path));
  database.reset();
  RETURN_IF_ERROR(InstallIndex(path));
  ASSIGN_OR_RETURN(database, OpenIndex(path, Database::Mode::kReadWrite));
  return absl::OkStatus();
}

// Everything before it is on the disk.
absl::Status JournalFiles::NoteCleanEnd() {
  RETURN_IF_ERROR(Commit([&] { return WriteMeta(*database, kUnsyncedEnd, "0"); }));
  return SyncAll();
}

// The record comes first, then the rows that others read.
absl::Status JournalFiles::Commit(const std::function<absl::Status()>& write) {
  ASSIGN_OR_RETURN(const ChangeRecorder recorder, ChangeRecorder::Begin(*database));
  ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(*database));
  RETURN_IF_ERROR(write());
  ASSIGN_OR_RETURN(const std::string changes, recorder.Changes());
  if (!changes.empty() && late == nullptr) {
    RETURN_IF_ERROR(syncs.Time([&] { return log->Append(changes); }));
  } else if (!changes.empty()) {
    RETURN_IF_ERROR(log->Append(changes, /*sync=*/false));
    if (!sync_due) sync_due = core::SystemClock().Now() + std::chrono::milliseconds(core::kRelaxedSyncMs);
  }
  if (!changes.empty()) mirrors->Log(log->file());
  return transaction.Commit();
}

std::optional<core::Clock::TimePoint> JournalFiles::due() const {
  const auto mark_due = log->mark_due();
  if (!sync_due || !late->idle()) return mark_due;
  return mark_due ? std::min(*mark_due, *sync_due) : *sync_due;
}

// Between commits: a late sync, a mark or a new file of the log, when it is time.
absl::Status JournalFiles::Mind() {
  if (log->IsLong()) RETURN_IF_ERROR(RenewLog());
  const core::Clock::TimePoint now = core::SystemClock().Now();
  if (late != nullptr) {
    if (const auto synced = late->TakeSynced()) log->Synced(*synced);
    if (sync_due && *sync_due <= now && late->idle()) {
      Segments::Files files = segments->TakeUnsynced();
      files.push_back({log->file().path(), log->file().file(), /*is_read=*/true});
      late->Begin(std::move(files), log->end());
      sync_due.reset();
    }
  }
  const auto mark_due = log->mark_due();
  return mark_due && *mark_due <= now ? log->Mark() : absl::OkStatus();
}

// Continues in a new file, which makes the others unnecessary.
absl::Status JournalFiles::RenewLog() {
  RETURN_IF_ERROR(SyncAll());
  ASSIGN_OR_RETURN(const std::string rows, AllRows(database->path(), kTables));
  RETURN_IF_ERROR(log->Continue(rows));
  mirrors->Log(log->file());
  return mirrors->Removals();
}

// For a directory in use. Directories from before there were shards name none.
absl::Status JournalFiles::CheckShard(const JournalOptions& options) const {
  ASSIGN_OR_RETURN(const std::optional<std::string> stored, ReadMeta(*database, "shard"));
  const std::string of = stored.value_or(core::Shard().Text());
  if (of == options.shard.Text()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(options.directory, " holds the state of ", of, ", this is ",
                                                    options.shard.Text(),
                                                    ": the number of shards stays the same for a run"));
}

absl::Status JournalFiles::Write(std::vector<JournalItem>& batch, const JournalOptions& options) {
  if (batch.empty()) return absl::OkStatus();
  int64_t payload_bytes = 0;
  bool admits = false, decides = false, merges = false, sets = false;
  for (const JournalItem& item : batch) {
    payload_bytes += item.payload_bytes();
    admits |= !item.entry.admitted.empty();
    decides |= !item.entry.decided.empty();
    merges |= !item.entry.merged.empty();
    sets |= !item.entry.settings.revisions.empty();
  }
  if (payload_bytes > 0) {
    RETURN_IF_ERROR(directory->CheckRoom(payload_bytes, options.min_free_bytes));
  }
  for (JournalItem& item : batch) RETURN_IF_ERROR(AppendPayloads(item));
  if (payload_bytes > 0 && late == nullptr) RETURN_IF_ERROR(SyncPayloads());
  ShowPayloads(batch);
  if (payload_bytes > 0) core::FaultPoint("after_segment_sync");
  if (merges) core::FaultPoint("before_digest_record");
  RETURN_IF_ERROR(Commit([&]() -> absl::Status {
    for (const JournalItem& item : batch) RETURN_IF_ERROR(WriteRows(item, options));
    return absl::OkStatus();
  }));
  if (sets) RETURN_IF_ERROR(SyncAll());  // sites are told, and no rebuild gives back what one alone has heard
  if (admits) core::FaultPoint("after_row");
  if (decides) core::FaultPoint("after_decision");
  return absl::OkStatus();
}

void JournalFiles::ShowPayloads(const std::vector<JournalItem>& batch) const {
  for (const JournalItem& item : batch) {
    for (const Extent& extent : item.contributions) mirrors->Payload(extent);
    for (const Extent& extent : item.updates) mirrors->Payload(extent);
  }
}

absl::Status JournalFiles::AppendPayloads(JournalItem& item) {
  for (ContributionRecord& contribution : item.entry.admitted) {
    framed = log->synced();
    ASSIGN_OR_RETURN(Extent extent, segments->Append(PayloadKind::kContribution, contribution.chunks, framed));
    item.contributions.push_back(std::move(extent));
    contribution.chunks.clear();
  }
  for (MergedRecord& merged : item.entry.merged) {
    ASSIGN_OR_RETURN(const std::optional<MergedRow> row, ReadMerged(*database, merged.fragment, merged.base + 1));
    Extent extent;
    const absl::Status stored = row ? segments->CheckPayload(row->update) : absl::NotFoundError("");
    if (absl::IsDataLoss(stored)) {  // but it has been merged again
      item.entry.events.push_back(
          {.kind = "repair",
           .site = "",
           .fragment = merged.fragment,
           .text = absl::StrCat(std::string(stored.message()), "; the update was stored again")});
    }
    if (stored.ok()) {
      extent = row->update;
    } else if (!merged.update.empty()) {  // a rollback has none
      framed = log->synced();
      ASSIGN_OR_RETURN(extent, segments->Append(PayloadKind::kUpdate, merged.update, framed));
    }
    item.updates.push_back(std::move(extent));
    merged.update.clear();
  }
  return absl::OkStatus();
}

// Their frames note the end of the log, so that it needs no mark.
absl::Status JournalFiles::SyncPayloads() {
  RETURN_IF_ERROR(syncs.Time([this] { return segments->Sync(); }));
  log->NotedElsewhere(framed);
  return absl::OkStatus();
}

absl::Status JournalFiles::SyncAll() {
  if (late == nullptr) return absl::OkStatus();  // nothing is left
  late->Finish();
  sync_due.reset();
  RETURN_IF_ERROR(segments->Sync());
  RETURN_IF_ERROR(log->file().Sync());
  log->Synced(log->end());
  return absl::OkStatus();
}

absl::Status JournalFiles::WriteRows(const JournalItem& item, const JournalOptions& options) {
  const int64_t now = core::SystemClock().UnixMs();
  const JournalEntry& entry = item.entry;
  if (!run_config_written) {
    RETURN_IF_ERROR(WriteMeta(*database, "run_config", Blob{options.run_config}));
    RETURN_IF_ERROR(WriteMeta(*database, "shard", options.shard.Text()));
    run_config_written = true;
  }
  if (!item.standby.empty() || !entry.forgotten.empty() || !entry.handed_to.empty()) {
    if (!item.standby.empty()) RETURN_IF_ERROR(AddStandby(*database, item.standby, item.formerly));
    if (!entry.forgotten.empty()) RETURN_IF_ERROR(ForgetStandby(*database, entry.forgotten));
    RETURN_IF_ERROR(WriteMeta(*database, kHandedTo, entry.handed_to));
    ASSIGN_OR_RETURN(std::vector<std::string> coordinators, ReadCoordinators(*database));
    mirrors->Know(std::move(coordinators));
    RETURN_IF_ERROR(
        WriteKnownStandbys(directory->path(), {mirrors->known(), entry.handed_to, log->end().sequence + 1}));
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
  if (!entry.continues.empty()) RETURN_IF_ERROR(Continue(*database, entry.continues));
  if (entry.eval_loss) RETURN_IF_ERROR(WriteEvalLoss(*database, *entry.eval_loss));
  if (entry.data) RETURN_IF_ERROR(WriteData(*database, *entry.data));
  RETURN_IF_ERROR(WriteSettings(*database, entry.settings));
  for (const Event& event : entry.events) RETURN_IF_ERROR(events.Write(*database, event, now));
  if (!item.snapshot) return absl::OkStatus();
  return WriteSnapshotRow(*database, *item.snapshot);
}

absl::Status JournalFiles::Prune(core::FragmentId fragment, const PruneLimits& limits) {
  std::vector<std::string> superfluous;
  RETURN_IF_ERROR(Commit([&]() -> absl::Status {
    ASSIGN_OR_RETURN(superfluous, PruneRows(*database, fragment, limits));
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(SyncAll());
  RETURN_IF_ERROR(log->Mark());  // the segments being removed may hold the only note of its end
  for (const std::string& file : superfluous) {
    if (::unlink(snapshot(file).c_str()) != 0) return formats::FileError("remove", snapshot(file));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> live, LiveSegments(*database));
  RETURN_IF_ERROR(segments->RemoveAllBut(live));
  return mirrors->Removals();
}

}  // namespace causeway::server
