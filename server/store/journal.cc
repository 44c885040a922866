#include "server/store/journal.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/fault_point.h"
#include "core/mutex.h"
#include "formats/posix_file.h"
#include "server/store/journal_files.h"
#include "server/store/load.h"

namespace causeway::server {

// The items on their way to the journal's thread, and what became of those before. Thread-safe.
class JournalQueue {
 public:
  uint64_t Add(JournalItem item);               // a ticket
  absl::Status WaitFor(uint64_t ticket) const;  // until it is durable and notified, or has failed: the journal's status
  void WaitForAll() const;                      // that were added before
  bool full() const;                            // with more than core::kMaxQueuedEventBytes of events

  absl::Status status() const;  // OK, or why the journal has ended
  void Fail(const absl::Status& status);
  void Wake();  // the journal's thread looks after its files
  void Close();

  // ---- The journal's thread ----
  // All that has queued up; no item: it is to look after its files, which it does at `due` at the latest. Nothing: the
  // queue is closed and empty.
  struct Batch {
    std::vector<JournalItem> items;
    absl::Status status;  // of the journal
  };
  std::optional<Batch> Take(std::optional<core::Clock::TimePoint> due);
  void Finish(size_t items, int64_t event_bytes);  // they are durable and notified, or have failed

 private:
  mutable core::Mutex mutex_;
  mutable core::Condition changed_;
  std::vector<JournalItem> items_ ABSL_GUARDED_BY(mutex_);
  uint64_t added_ ABSL_GUARDED_BY(mutex_) = 0;  // ever
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t event_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those not finished
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // since the thread last took
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

uint64_t JournalQueue::Add(JournalItem item) {
  const core::MutexLock lock(mutex_);
  event_bytes_ += item.event_bytes();
  items_.push_back(std::move(item));
  changed_.NotifyAll();
  return ++added_;
}

absl::Status JournalQueue::WaitFor(uint64_t ticket) const {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_ >= ticket; });
  return status_;
}

void JournalQueue::WaitForAll() const {
  uint64_t last = 0;
  {
    const core::MutexLock lock(mutex_);
    last = added_;
  }
  WaitFor(last).IgnoreError();
}

bool JournalQueue::full() const {
  const core::MutexLock lock(mutex_);
  return event_bytes_ > core::kMaxQueuedEventBytes;
}

absl::Status JournalQueue::status() const {
  const core::MutexLock lock(mutex_);
  return status_;
}

void JournalQueue::Fail(const absl::Status& status) {
  const core::MutexLock lock(mutex_);
  status_ = status;
}

void JournalQueue::Wake() {
  const core::MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void JournalQueue::Close() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
}

std::optional<JournalQueue::Batch> JournalQueue::Take(std::optional<core::Clock::TimePoint> due) {
  core::MutexLock lock(mutex_);
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || woken_ || !items_.empty(); };
  if (due && status_.ok()) {
    lock.WaitFor(changed_, *due - core::SystemClock().Now(), ready);
  } else {
    lock.Wait(changed_, ready);
  }
  woken_ = false;
  if (items_.empty() && closing_) return std::nullopt;
  return Batch{std::exchange(items_, {}), status_};
}

void JournalQueue::Finish(size_t items, int64_t event_bytes) {
  const core::MutexLock lock(mutex_);
  finished_ += items;
  event_bytes_ -= event_bytes;
  changed_.NotifyAll();
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(JournalOptions options) {
  std::unique_ptr<JournalFiles> files;
  absl::Status opened = absl::AbortedError("");
  while (absl::IsAborted(opened)) {  // another process was still at work, and its last records count
    files = std::make_unique<JournalFiles>();
    opened = files->OpenAll(options);
  }
  RETURN_IF_ERROR(opened);
  return std::unique_ptr<Journal>(new Journal(std::move(options), std::move(files)));
}

Journal::Journal(JournalOptions options, std::unique_ptr<JournalFiles> files)
    : options_(std::move(options)), files_(std::move(files)), queue_(std::make_unique<JournalQueue>()) {
  if (options_.relaxed) {
    files_->late = std::make_unique<LateSync>(&files_->syncs, [this](const absl::Status& status) {
      if (!status.ok()) Fail(status);
      queue_->Wake();
    });
  }
  if (!options_.copy.directory.empty()) {
    CopyOptions copy = options_.copy;
    copy.min_free_bytes = options_.min_free_bytes;
    copies_ = std::make_unique<Copies>(options_.directory, options_.shard, files_->identity, std::move(copy),
                                       [this] { queue_->Wake(); });
  }
  thread_ = core::Thread([this] { Run(); });
  if (options_.scrub_bytes_per_s <= 0) return;
  const auto found = [this](const DiskDamage& damage) {  // a damaged log is abandoned while its rows are still here
    queue_->Add(
        {.entry = {.events = {{.kind = "damage", .site = "", .text = damage.Text()}}}, .renew_log = damage.in_log});
    if (options_.damaged) options_.damaged(damage);
  };
  scrub_ = std::make_unique<ScrubThread>(ScrubOptions{.state_dir = options_.directory,
                                                      .bytes_per_s = options_.scrub_bytes_per_s,
                                                      .durable = [this] { return files_->log->durable(); },
                                                      .found = found,
                                                      .wait_until = nullptr});
}

Journal::~Journal() {
  scrub_.reset();
  queue_->Close();
  thread_.Join();
  files_->late.reset();  // they call us
  copies_.reset();
}

const JournalIdentity& Journal::identity() const { return files_->identity; }

absl::StatusOr<StoredRun> Journal::Load() const {
  const core::MutexLock lock(files_->reader_mutex);
  return LoadRun(*files_->reader, options_.shard);
}

// ---- The queue ----

void Journal::Commit(JournalEntry entry) { queue_->Add({.entry = std::move(entry)}); }

bool Journal::full() const { return queue_->full(); }

void Journal::Flush() {
  CHECK(!thread_.IsCurrent());  // it would wait for itself
  queue_->WaitForAll();
}

absl::Status Journal::status() const { return queue_->status(); }

void Journal::BeginCopies() {
  if (copies_ != nullptr) copies_->Begin();
  queue_->Wake();
}

JournalFigures Journal::figures() const {
  return {.syncs = files_->syncs.figures(),
          .scrub = scrub_ == nullptr ? ScrubFigures() : scrub_->figures(),
          .copies = copies_ == nullptr ? CopyFigures() : copies_->figures()};
}

absl::Status Journal::AddAndWait(JournalItem item) {
  CHECK(!thread_.IsCurrent());  // it would wait for itself
  return queue_->WaitFor(queue_->Add(std::move(item)));
}

absl::Status Journal::Begin(const RunRecord& run, JournalEntry entry) {
  return AddAndWait({.entry = std::move(entry), .run = run});
}

// ---- The journal's thread ----

void Journal::Run() {
  const auto stage_copy = [this] {
    if (copies_ != nullptr) copies_->Stage(*files_->database, *files_->segments, files_->log->end());
  };
  while (std::optional<JournalQueue::Batch> batch = queue_->Take(files_->due())) {
    std::vector<JournalItem>& items = batch->items;
    const size_t count = items.size();
    int64_t bytes = 0;
    for (const JournalItem& item : items) bytes += item.event_bytes();
    if (batch->status.ok()) {
      absl::Status written = WriteAndTell(items);
      if (written.ok()) written = files_->Mind();
      if (written.ok()) stage_copy();
      if (!written.ok()) Fail(written);
    }
    items.clear();  // frees everything that its callbacks hold before any waiter learns that they are done
    queue_->Finish(count, bytes);
  }
  if (!status().ok()) return;
  absl::Status synced = files_->SyncAll();
  const bool in_doubt = options_.relaxed || identity().may_have_lost_its_end;
  if (synced.ok() && in_doubt && !ends_in_doubt_) synced = files_->NoteCleanEnd();
  if (!synced.ok()) return Fail(synced);
  files_->log->Mark().IgnoreError();
  if (copies_ != nullptr) copies_->End(!ends_in_doubt_, stage_copy);
}

// Says what a machine that stops now would keep.
void Journal::Fail(const absl::Status& failure) {
  const uint64_t on_disk = files_->log->on_disk(), durable = files_->log->durable();
  std::string text = absl::StrCat(failure.message(), "; all records up to ", on_disk, " are on the disk");
  if (durable > on_disk) {
    absl::StrAppend(&text, ", and ", on_disk + 1, " to ", durable, " may be lost if the machine stops now");
  }
  const absl::Status status(failure.code(), text);
  queue_->Fail(status);
  if (options_.failed) options_.failed(status);
}

absl::Status Journal::WriteAndTell(std::vector<JournalItem>& batch) {
  auto last = std::find_if(batch.begin(), batch.end(),
                           [](const JournalItem& item) { return !item.end.ok() || !item.entry.handed_to.empty(); });
  absl::Status end = last == batch.end() ? absl::OkStatus() : last->end;
  if (last != batch.end() && end.ok()) {
    end = absl::AbortedError(absl::StrCat("the run was handed over to ", last->entry.handed_to));
    ++last;
  }
  batch.erase(last, batch.end());
  RETURN_IF_ERROR(files_->Write(batch, options_));
  for (JournalItem& item : batch) {
    for (size_t i = 0; i < item.entry.merged.size(); ++i) {
      if (item.entry.merged[i].stored) item.entry.merged[i].stored(item.updates[i]);
    }
    if (item.entry.durable) item.entry.durable();
  }
  for (const JournalItem& item : batch) {
    if (item.renew_log) RETURN_IF_ERROR(files_->RenewLog());
    if (item.feed != nullptr) RETURN_IF_ERROR(files_->mirrors->Begin(item.feed, files_->log->file()));
    if (!item.snapshot) continue;
    RETURN_IF_ERROR(
        files_->Prune(item.snapshot->fragment, {options_.keep, options_.max_update_log_bytes, kept_.load()}));
    if (copies_ != nullptr) copies_->Want();
    core::FaultPoint("after_prune");
  }
  return end;
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
    AddAndWait({.end = room}).IgnoreError();
    return room;
  }
  const std::string name = SnapshotFileName(fragment, state.version);
  ASSIGN_OR_RETURN(const uint64_t hash, WriteSnapshot(files_->snapshot(name), fragment, state, digest));
  RETURN_IF_ERROR(files_->mirrors->Snapshot("snapshots/" + name));
  return AddAndWait({.snapshot = SnapshotRow{fragment, state.version, digest, hash, state.run_tokens}});
}

absl::Status Journal::Keep(core::Version version, int num_fragments) {
  kept_ = version;  // first: snapshots present from now on stay
  Flush();
  std::map<core::Version, int> fragments_with;
  for (core::FragmentId p = 0; p < num_fragments; ++p) {
    ASSIGN_OR_RETURN(const std::vector<SnapshotRow> snapshots, files_->Snapshots(p));
    for (const SnapshotRow& row : snapshots) ++fragments_with[row.version];
  }
  if (fragments_with[version] == num_fragments) return absl::OkStatus();
  std::erase_if(fragments_with, [&](const auto& one) { return one.second < num_fragments; });
  return absl::FailedPreconditionError(absl::StrCat(
      "version ", version, " is not kept; expected ",
      fragments_with.empty() ? "one with a snapshot of each fragment, of which there is none" : "one of ",
      absl::StrJoin(fragments_with, ", ", [](std::string* out, const auto& one) { absl::StrAppend(out, one.first); })));
}

absl::StatusOr<core::FragmentState> Journal::LoadSnapshot(core::FragmentId fragment, core::Version version) const {
  ASSIGN_OR_RETURN(const std::vector<SnapshotRow> snapshots, files_->Snapshots(fragment));
  for (const SnapshotRow& row : snapshots) {
    if (row.version != version) continue;
    auto state = ReadSnapshot(files_->snapshot(SnapshotFileName(fragment, version)), version, row.hash);
    if (state.ok()) state->run_tokens = row.run_tokens;
    return state;
  }
  return absl::NotFoundError(
      absl::StrCat(files_->directory->path(), " has no snapshot of fragment ", fragment, " at version ", version));
}

absl::StatusOr<std::string> Journal::ReadChunk(const Extent& extent, size_t index) const {
  return files_->segments->ReadChunk(extent, index);
}

absl::StatusOr<std::vector<Event>> Journal::History(int64_t after_id, int64_t limit, const std::string& kind) const {
  const core::MutexLock lock(files_->reader_mutex);
  return LoadEvents(*files_->reader, after_id, limit, kind);
}

absl::StatusOr<int> Journal::Mirror(const std::shared_ptr<MirrorFeed>& feed, std::string formerly) {
  const std::string address = feed->figures().address;
  if (!files_->mirrors->CheckMayForget(formerly).ok()) formerly.clear();  // another one is there, or none is known
  RETURN_IF_ERROR(AddAndWait({.feed = feed, .standby = address, .formerly = std::move(formerly)}));
  return files_->mirrors->PlaceOf(address);
}

MirrorFeeds& Journal::mirrors() const { return *files_->mirrors; }

}  // namespace causeway::server
