#include "server/store/scrubber.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "formats/file_digest.h"
#include "server/store/high_water.h"
#include "server/store/log_file.h"
#include "server/store/rows.h"
#include "server/store/schema.h"
#include "server/store/segments.h"
#include "server/store/state_log.h"

namespace causeway::server {
namespace {

constexpr auto kEvery = std::chrono::hours(24);
constexpr int64_t kScrubbedBytes = int64_t{256} << 10;
constexpr size_t kMaxDamages = 100;  // that are reported; one is enough reason to check the disk
constexpr char kLogCure[] = "a new file of the log was begun, with all rows, and the next start reads that one";
constexpr char kMarkCure[] = "the next marks are written over it";
constexpr char kPayloadCure[] =
    "stop the coordinator with SIGTERM, which saves snapshots and merges what was decided, and start it again";
constexpr char kSnapshotCure[] =
    "let the fragment's next snapshot take its place before the coordinator is started again (checkpoint.every_rounds)";
constexpr char kIndexCure[] = "start the coordinator again: it is made anew from the log";

struct LogToCheck {
  std::string path;
  LogEnd found;
};

// The fault of a file that ends before the next one's beginning or, for the last file, before the durable end.
std::optional<DiskDamage> DamageOf(const std::vector<LogToCheck>& files, size_t i, uint64_t durable) {
  uint64_t end = files[i].found.end.sequence;
  if (!files[i].found.previous && i > 0) end = files[i - 1].found.end.sequence;
  const bool is_last = i + 1 == files.size();
  const bool next_is_whole = !is_last && files[i + 1].found.previous.has_value();
  const uint64_t needed = next_is_whole ? files[i + 1].found.previous->sequence : durable;
  // A clean end: the missing record belongs to the next file.
  if (end >= needed || (files[i].found.clean && !is_last && !next_is_whole)) return std::nullopt;
  return DiskDamage{.file = files[i].path,
                    .offset = files[i].found.offset,
                    .cause = absl::StrCat("record ", end + 1, " is not what was written; the log goes up to ", durable),
                    .cure = kLogCure,
                    .in_log = true};
}

absl::Status NotNamed() { return absl::NotFoundError("no row names it any more"); }

// OK if the query has a row.
absl::Status CheckNamed(Database& index, std::string_view sql, std::initializer_list<SqlValue> values) {
  bool named = false;
  RETURN_IF_ERROR(index.Query(sql, values, [&](const SqlRow&) {
    named = true;
    return absl::OkStatus();
  }));
  return named ? absl::OkStatus() : NotNamed();
}

absl::Status CheckPayloadNamed(Database& index, const Extent& extent) {
  return CheckNamed(index,
                    "SELECT 1 FROM contributions WHERE segment = ?1 AND offset = ?2 UNION ALL "
                    "SELECT 1 FROM rounds WHERE update_segment = ?1 AND update_offset = ?2 LIMIT 1",
                    {extent.segment, extent.offset});
}

// In their order on the disk.
absl::StatusOr<std::vector<Extent>> LivePayloads(Database& index) {
  std::vector<Extent> extents;
  RETURN_IF_ERROR(
      index.Query("SELECT segment, offset, chunk_bytes, chunk_digests FROM contributions WHERE segment <> 0 UNION ALL "
                  "SELECT update_segment, update_offset, update_chunk_bytes, update_chunk_digests FROM rounds "
                  "WHERE update_segment <> 0 ORDER BY 1, 2",
                  {}, [&](const SqlRow& row) {
                    extents.push_back(ExtentFrom(row, 0));
                    return absl::OkStatus();
                  }));
  return extents;
}

formats::FileDescriptor OpenToScrub(const std::string& path) {
  return formats::FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

std::string DiskDamage::Text() const {
  return absl::StrCat(file, ": is damaged at byte ", offset, ": ", cause, "; ", cure);
}

core::Clock::TimePoint ScrubPace::After(int64_t bytes, core::Clock::TimePoint now) {
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / static_cast<double>(bytes_per_s_));
  next_ = std::max(next_, now) + std::chrono::duration_cast<core::Clock::Duration>(takes);
  return next_;
}

ScrubFigures Scrubber::figures() const {
  const core::MutexLock lock(mutex_);
  return figures_;
}

void Scrubber::Note(DiskDamage damage) {
  const bool is_new = known_.emplace(damage.file, damage.offset).second;
  const auto same = [&](const DiskDamage& other) { return other.file == damage.file && other.offset == damage.offset; };
  if (damages_.size() < kMaxDamages) damages_.push_back(damage);
  {
    const core::MutexLock lock(mutex_);
    if (figures_.damages.size() < kMaxDamages && std::ranges::none_of(figures_.damages, same))
      figures_.damages.push_back(damage);
  }
  if (is_new && options_.found) options_.found(damage);
}

void Scrubber::Run() {
  while (true) {
    const core::Clock::TimePoint next = options_.clock->Now() + kEvery;
    if (absl::IsCancelled(Pass()) || !options_.wait_until(next)) return;
  }
}

absl::Status Scrubber::Pass() {
  damages_.clear();
  {
    const core::MutexLock lock(mutex_);
    figures_.bytes_now = 0;
  }
  const absl::Status status = ReadAll();
  if (absl::IsCancelled(status)) return status;
  if (!status.ok()) Note({IndexPath(options_.state_dir), 0, std::string(status.message()), kIndexCure});
  const core::MutexLock lock(mutex_);
  figures_.bytes = std::exchange(figures_.bytes_now, 0);
  figures_.ended_unix_ms = options_.clock->UnixMs();
  figures_.damages = damages_;
  ++figures_.passes;
  return status;
}

absl::Status Scrubber::ReadAll() {
  RETURN_IF_ERROR(ReadLog());
  RETURN_IF_ERROR(ReadMarks());
  ASSIGN_OR_RETURN(const auto index, Database::Open(IndexPath(options_.state_dir), Database::Mode::kReadOnly));
  RETURN_IF_ERROR(ReadSnapshots(*index));
  return ReadPayloads(*index);
}

absl::Status Scrubber::ReadPiece(const formats::FileDescriptor& file, const std::string& path, int64_t offset,
                                 std::span<std::byte> out) {
  const auto size = static_cast<int64_t>(out.size());
  ::posix_fadvise(file.get(), offset, size, POSIX_FADV_DONTNEED);
  failed_at_ = offset;
  RETURN_IF_ERROR(formats::ReadAt(file, path, offset, out));
  {
    const core::MutexLock lock(mutex_);
    figures_.bytes_now += size;
  }
  return options_.wait_until(pace_.After(size, options_.clock->Now())) ? absl::OkStatus() : absl::CancelledError();
}

absl::Status Scrubber::NoteUnreadable(DiskDamage damage, const absl::Status& status) {
  if (absl::IsCancelled(status)) return status;
  damage.offset = failed_at_;
  damage.cause = std::string(status.message());
  Note(std::move(damage));
  return absl::OkStatus();
}

absl::Status Scrubber::ReadLog() {
  const uint64_t durable = options_.durable();  // before anything is read
  const formats::NumberedFiles names = StateLog::Files(options_.state_dir);
  std::vector<LogToCheck> files;
  for (const int64_t number : names.Numbers()) {
    const std::string path = names.Path(number);
    const formats::FileDescriptor file = OpenToScrub(path);
    if (!file.is_open() && errno == ENOENT) continue;  // an old one, which a later file has made superfluous
    ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
    const absl::StatusOr<LogEnd> found = FindLogEnd(
        size, [&](int64_t offset, std::span<std::byte> bytes) { return ReadPiece(file, path, offset, bytes); });
    if (!found.ok()) return NoteUnreadable({.file = path, .cure = kLogCure, .in_log = true}, found.status());
    files.push_back({path, *found});
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (std::optional<DiskDamage> damage = DamageOf(files, i, durable)) Note(*std::move(damage));
  }
  return absl::OkStatus();
}

absl::Status Scrubber::ReadMarks() {
  const std::string path = options_.state_dir + "/high_water";
  ASSIGN_OR_RETURN(HighWater::Found marks, HighWater::Read(path));
  if (marks.damaged > 0) {  // it may have been half written
    ASSIGN_OR_RETURN(marks, HighWater::Read(path));
  }
  if (marks.missing) Note({path, 0, "is missing", kMarkCure});
  if (marks.damaged > 0) Note({path, marks.damaged_at, "this mark is not what was written", kMarkCure});
  return absl::OkStatus();
}

absl::Status Scrubber::ReadSnapshots(Database& index) {
  std::vector<std::pair<std::string, std::string>> snapshots;
  RETURN_IF_ERROR(index.Query(  // those of a seed that is not complete may be written again
      "SELECT file, hash FROM snapshots WHERE EXISTS (SELECT 1 FROM meta WHERE key = 'manifest') ORDER BY file", {},
      [&](const SqlRow& row) {
        snapshots.emplace_back(row.Text(0), row.Text(1));
        return absl::OkStatus();
      }));
  for (const auto& [name, hash] : snapshots) {
    const std::string path = absl::StrCat(options_.state_dir, "/snapshots/", name);
    const absl::StatusOr<std::string> read = ReadWhole(path);
    if (absl::IsCancelled(read.status())) return read.status();
    if (read.ok() && *read == hash) continue;
    const absl::Status named = CheckNamed(index, "SELECT 1 FROM snapshots WHERE file = ? AND hash = ?",
                                          {std::string_view(name), std::string_view(hash)});
    if (absl::IsNotFound(named)) continue;
    RETURN_IF_ERROR(named);
    Note({path, 0,
          read.ok() ? absl::StrCat("its bytes have the hash ", *read, ", expected ", hash)
                    : std::string(read.status().message()),
          kSnapshotCure});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Scrubber::ReadWhole(const std::string& path) {
  const formats::FileDescriptor file = OpenToScrub(path);
  if (!file.is_open()) return absl::DataLossError("is missing");
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  std::vector<std::byte> piece(kScrubbedBytes);
  formats::RunningDigest digest;
  for (int64_t at = 0; at < size;) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(kScrubbedBytes, size - at)));
    RETURN_IF_ERROR(ReadPiece(file, path, at, part));
    digest.Add(part);
    at += static_cast<int64_t>(part.size());
  }
  return core::DigestText(digest.value().hash);
}

absl::Status Scrubber::ReadPayloads(Database& index) {
  ASSIGN_OR_RETURN(const std::vector<Extent> extents, LivePayloads(index));
  int64_t opened = 0, missing = 0;
  formats::FileDescriptor file;
  for (const Extent& extent : extents) {
    const std::string path = Segments::Path(options_.state_dir + "/segments", extent.segment);
    if (opened != extent.segment) file = OpenToScrub(path);
    opened = extent.segment;
    const absl::Status read = file.is_open() ? ReadPayload(index, file, extent) : absl::DataLossError("is missing");
    if (absl::IsCancelled(read)) return read;
    if (read.ok() || extent.segment == missing || !CheckPayloadNamed(index, extent).ok()) continue;
    if (!file.is_open()) missing = extent.segment;
    Note({path, file.is_open() ? failed_at_ : 0, std::string(read.message()), kPayloadCure});
  }
  return absl::OkStatus();
}

absl::Status Scrubber::ReadPayload(Database& index, const formats::FileDescriptor& file, const Extent& extent) {
  const std::string path = Segments::Path(options_.state_dir + "/segments", extent.segment);
  int64_t at = extent.offset - Segments::kFrameBytes;
  std::vector<std::byte> frame(Segments::kFrameBytes);
  RETURN_IF_ERROR(ReadPiece(file, path, at, frame));
  if (!Segments::IsFrameOf(extent, frame) && CheckPayloadNamed(index, extent).ok()) {
    Note({path, at, "a payload's frame is not what was written", kPayloadCure});
  }
  at = extent.offset;
  for (size_t i = 0; i < extent.chunk_bytes.size(); ++i) {
    std::vector<std::byte> chunk(extent.chunk_bytes[i]);
    RETURN_IF_ERROR(ReadPiece(file, path, at, chunk));
    const uint64_t digest = core::Xxh3(chunk.data(), chunk.size());
    if (digest != extent.chunk_digests[i] && CheckPayloadNamed(index, extent).ok()) {
      Note({path, at,
            absl::StrCat("a chunk of ", chunk.size(), " bytes has digest ", core::DigestText(digest), ", expected ",
                         core::DigestText(extent.chunk_digests[i])),
            kPayloadCure});
    }
    at += static_cast<int64_t>(chunk.size());
  }
  return absl::OkStatus();
}

// ---- The thread ----

void LowerThreadPriority() {
  constexpr int kNice = 10, kOfThisThread = 1, kIdle = 3 << 13;  // ioprio_set(2) has no names for the last two
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  ::syscall(SYS_ioprio_set, kOfThisThread, 0, kIdle);
}

ScrubThread::ScrubThread(ScrubOptions options)
    : scrubber_([&] {
        options.wait_until = [this](core::Clock::TimePoint time) { return WaitUntil(time); };
        return std::move(options);
      }()),
      thread_([this] {
        LowerThreadPriority();
        scrubber_.Run();
      }) {}

ScrubThread::~ScrubThread() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

bool ScrubThread::WaitUntil(core::Clock::TimePoint time) {
  core::MutexLock lock(mutex_);
  return !lock.WaitFor(changed_, time - core::SystemClock().Now(),
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_; });
}

}  // namespace causeway::server
