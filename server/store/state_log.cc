#include "server/store/state_log.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "formats/file_digest.h"

namespace causeway::server {
namespace {

constexpr auto kMarkAfter = std::chrono::milliseconds(50);
constexpr char kNothingChanged[] =
    "nothing was changed. Restore the whole state directory from a backup and start once with --new_lineage, or move "
    "it away and start with --rebuild_from_sites";

std::string HighWaterPath(const std::string& state_dir) { return state_dir + "/high_water"; }

bool BeginsWhole(const LogContents& file) {
  return !file.records.empty() && file.records.front().kind == RecordKind::kState;
}

// Forgets all records after number `last`, and the traces of those that were not written to their end.
void CutAfter(LogContents& file, uint64_t last) {
  const size_t before = file.records.size();
  std::erase_if(file.records, [last](const LogRecord& record) { return record.mark.sequence > last; });
  const bool reached = file.records.size() < before || (before > 0 && file.records.back().mark.sequence == last);
  if (!reached && !file.torn) return;  // its end is not what is cut off
  file.end = 0;
  for (const LogRecord& record : file.records) file.end += SizeInFile(record);
  file.wrong.clear();
  file.wrong_after.reset();
  file.torn = file.followed = false;
  file.behind_damage.clear();
}

// The records that define the rows, and where they were read.
class Reading {
 public:
  // `cut`: the log may end before its mark.
  Reading(HighWater::Found marks, bool cut) : marks_(marks), cut_(cut) {}

  // The newest file whose first record is whole.
  absl::Status Begin(LogContents file, bool is_last) {
    RETURN_IF_ERROR(CheckEnd(file, is_last));
    Add(std::move(file.records));
    path_ = file.path;
    if (cut_) found_.cut_path = file.path;
    found_.cut_at = file.end;
    if (file.wrong.empty()) return absl::OkStatus();
    torn_at_ = absl::StrCat(file.path, ": record ", end().sequence + 1,
                            ", the last one, was not written to its end, at byte ", file.end);
    return absl::OkStatus();
  }

  // A later file, whose first record is not whole. That record only repeats the rows, so it is not needed if the
  // following ones are there.
  absl::Status Follow(LogContents file, bool is_newest) {
    // The start of a life was interrupted. The next life has skipped it and taken its numbers.
    const bool begun = file.torn || file.is_empty();
    if (begun && (!is_newest || marks_.mark.sequence <= end().sequence)) {
      absl::StrAppend(&passed_over_, " or ", file.path);
      return absl::OkStatus();
    }
    const uint64_t first = end().sequence + 1, marked = marks_.mark.sequence;
    const bool alone = file.behind_damage.empty();
    if (alone && marked >= first && file.wrong_after != end()) {  // which of them has lost records?
      return Damaged(absl::StrCat(path_, passed_over_, " or ", file.path), first);
    }
    if (alone && (file.followed || marked > first)) return Damaged(file.path, first);
    if (!alone && file.behind_damage.front().previous.sequence != first) return Damaged(file.path, first + 1);
    if (!alone && file.behind_damage.front().kind == RecordKind::kState) return Damaged(file.path, first);
    repaired_.push_back(absl::StrCat(file.path, ": record ", first, " is damaged; it repeats what ", path_, " holds"));
    torn_at_.clear();
    // Its number is taken: another record with it would not be the acknowledged one.
    if (alone && marked == first) read_.push_back(marks_.mark);
    Add(std::move(file.behind_damage));
    path_ = file.path;
    return absl::OkStatus();
  }

  absl::StatusOr<StateLog::Found> Finish() && {
    if (marks_.mark.sequence > end().sequence && !cut_) {
      if (!torn_at_.empty()) return Damaged(path_, end().sequence + 1);
      return absl::DataLossError(absl::StrCat(path_, ": ends with record ", end().sequence,
                                              ", but the run was acknowledged up to ", marks_.mark.sequence, "; ",
                                              kNothingChanged));
    }
    for (const LogMark& mark : read_) {
      if (mark.sequence != marks_.mark.sequence || mark.hash == marks_.mark.hash) continue;
      return absl::DataLossError(
          absl::StrCat(path_, ": record ", mark.sequence, " is not the one that was acknowledged; ", kNothingChanged));
    }
    found_.end = cut_ && marks_.mark.sequence > end().sequence ? marks_.mark : end();  // no number is used twice
    if (marks_.missing) repaired_.push_back("high_water is missing");
    if (marks_.damaged > 0 && marks_.mark.sequence > 0) {
      repaired_.push_back("high_water: one of its slots is damaged; the other one is there");
    } else if (marks_.damaged > 0) {
      repaired_.push_back("high_water is damaged");
    }
    if (!torn_at_.empty()) repaired_.push_back(torn_at_);
    found_.torn = torn_at_;
    found_.repaired = std::move(repaired_);
    return std::move(found_);
  }

 private:
  const LogMark& end() const { return read_.back(); }

  // A tear is where the process or the machine stopped; marked records lie before it.
  absl::Status CheckEnd(const LogContents& file, bool is_last) const {
    if (file.wrong.empty()) return absl::OkStatus();
    const LogMark& last = file.records.back().mark;
    if (file.torn && (!is_last || marks_.mark.sequence <= last.sequence)) return absl::OkStatus();
    return absl::DataLossError(Sentence(file.path, last.sequence + 1, absl::StrCat(" at byte ", file.end)));
  }

  absl::Status Damaged(const std::string& path, uint64_t record) const {
    return absl::DataLossError(Sentence(path, record, ""));
  }

  std::string Sentence(const std::string& path, uint64_t record, const std::string& where) const {
    return absl::StrCat(path, ": record ", record, where, " is damaged, and the run was acknowledged up to ",
                        std::max(marks_.mark.sequence, record), "; ", kNothingChanged);
  }

  void Add(std::vector<LogRecord> records) {
    for (LogRecord& record : records) {
      found_.epoch = record.epoch;
      read_.push_back(record.mark);
      found_.changes.push_back(std::move(record.contents));
    }
  }

  const HighWater::Found marks_;
  const bool cut_;
  StateLog::Found found_;
  std::vector<LogMark> read_;
  std::string path_, torn_at_, passed_over_;
  std::vector<std::string> repaired_;
};

}  // namespace

formats::NumberedFiles StateLog::Files(const std::string& state_dir) { return {state_dir + "/log", ".log"}; }

absl::StatusOr<std::optional<StateLog::Found>> StateLog::Read(const std::string& state_dir) {
  return ReadFiles(state_dir, std::nullopt);
}

absl::StatusOr<std::optional<StateLog::Found>> StateLog::ReadUpTo(const std::string& state_dir, uint64_t last) {
  return ReadFiles(state_dir, last);
}

absl::StatusOr<uint64_t> StateLog::ReadMark(const std::string& state_dir) {
  ASSIGN_OR_RETURN(const HighWater::Found marks, HighWater::Read(HighWaterPath(state_dir)));
  return marks.mark.sequence;
}

absl::StatusOr<std::optional<StateLog::Found>> StateLog::ReadFiles(const std::string& state_dir,
                                                                   std::optional<uint64_t> last) {
  const formats::NumberedFiles files = Files(state_dir);
  const std::vector<int64_t> numbers = files.Numbers();
  ASSIGN_OR_RETURN(const HighWater::Found marks, HighWater::Read(HighWaterPath(state_dir)));
  std::vector<LogContents> later;  // newest first
  uint64_t last_digest = 0;
  for (size_t i = numbers.size(); i > 0; --i) {
    ASSIGN_OR_RETURN(LogContents file, ReadLogFile(files.Path(numbers[i - 1]), std::nullopt));
    if (i == numbers.size()) last_digest = file.digest;
    if (last) CutAfter(file, *last);
    if (!BeginsWhole(file)) {
      later.push_back(std::move(file));
      continue;
    }
    Reading reading(marks, last.has_value());
    RETURN_IF_ERROR(reading.Begin(std::move(file), later.empty()));
    for (; !later.empty(); later.pop_back()) {
      RETURN_IF_ERROR(reading.Follow(std::move(later.back()), later.size() == 1));
    }
    ASSIGN_OR_RETURN(Found found, std::move(reading).Finish());
    found.first_file = numbers[i - 1];
    found.last_file = numbers.back();
    found.last_digest = last_digest;
    return found;
  }
  const bool begun =
      std::all_of(later.begin(), later.end(), [](const LogContents& file) { return file.torn || file.is_empty(); });
  const bool unmarked = marks.mark.sequence == 0 && marks.damaged == 0;
  if (unmarked && begun) return std::nullopt;  // the first start was interrupted, or there was none
  const auto path = [](std::string* out, const LogContents& file) { out->append(file.path); };
  return absl::DataLossError(absl::StrCat(later.empty() ? files.folder : absl::StrJoin(later, ", ", path),
                                          later.empty() ? ": there is no log" : ": the first record is damaged",
                                          ", and the run was acknowledged up to ", marks.mark.sequence, "; ",
                                          kNothingChanged));
}

absl::Status StateLog::CheckReaches(const std::string& state_dir, const std::optional<Found>& found, uint64_t sequence,
                                    const std::string& witness) {
  const uint64_t end = found ? found->end.sequence : 0;
  if (sequence <= end) return absl::OkStatus();
  if (found && !found->torn.empty()) {
    return absl::DataLossError(absl::StrCat(found->torn, ", but ", witness, " was written after record ", sequence,
                                            ", so that it is damaged; ", kNothingChanged));
  }
  const formats::NumberedFiles files = Files(state_dir);
  return absl::DataLossError(
      absl::StrCat(found ? files.Path(found->last_file) : files.folder, ": ends with record ", end, ", but ", witness,
                   " was written after record ", sequence,
                   " (if another coordinator runs on it, whose lock file was removed, leave it to "
                   "that one); ",
                   kNothingChanged));
}

absl::StatusOr<std::unique_ptr<StateLog>> StateLog::Begin(const std::string& state_dir, const Found& found,
                                                          uint64_t epoch, std::string_view all_rows) {
  const formats::NumberedFiles files = Files(state_dir);
  std::error_code error;
  std::filesystem::create_directories(files.folder, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat("cannot create ", files.folder, ": ", error.message()));
  RETURN_IF_ERROR(formats::SyncFolderOf(files.folder));
  const std::vector<int64_t> numbers = files.Numbers();
  const int64_t next = std::max(found.last_file, numbers.empty() ? 0 : numbers.back()) + 1;
  ASSIGN_OR_RETURN(LogFile file, LogFile::Create(files.Path(next), found.end, epoch));
  if (found.last_file > 0) {
    ASSIGN_OR_RETURN(const formats::FileDigest now, formats::DigestOfFile(files.Path(found.last_file)));
    if (now.hash != found.last_digest) {
      return absl::AbortedError(absl::StrCat(files.Path(found.last_file), " has grown since it was read"));
    }
  }
  ASSIGN_OR_RETURN(HighWater high_water, HighWater::Open(HighWaterPath(state_dir)));
  std::unique_ptr<StateLog> log(new StateLog(state_dir, next, std::move(file), epoch, std::move(high_water)));
  RETURN_IF_ERROR(log->BeginFile(all_rows, found.first_file));
  if (!found.cut_path.empty() && ::truncate(found.cut_path.c_str(), found.cut_at) != 0) {
    return formats::FileError("cut", found.cut_path);
  }
  return log;
}

absl::Status StateLog::BeginFile(std::string_view all_rows, int64_t before) {
  RETURN_IF_ERROR(file_.Append(RecordKind::kState, all_rows));
  synced_ = file_.end();
  durable_ = on_disk_ = synced_.sequence;
  state_bytes_ = file_.bytes();
  RETURN_IF_ERROR(Mark());
  return RemoveFilesBefore(before);
}

absl::Status StateLog::Append(std::string_view changes, bool sync) {
  RETURN_IF_ERROR(file_.Append(RecordKind::kRows, changes, sync));
  durable_ = file_.end().sequence;
  if (sync) Synced(file_.end());
  return CheckFence();
}

void StateLog::Synced(const LogMark& mark) {
  synced_ = mark;
  on_disk_ = mark.sequence;
  if (!mark_due_) mark_due_ = core::SystemClock().Now() + kMarkAfter;
}

absl::Status StateLog::Continue(std::string_view all_rows) {
  RETURN_IF_ERROR(CheckFence());
  ASSIGN_OR_RETURN(file_, LogFile::Create(Files(directory_).Path(number_ + 1), file_.end(), epoch_));
  ++number_;
  return BeginFile(all_rows, number_ - 1);
}

absl::Status StateLog::Mark() {
  mark_due_.reset();
  if (marked_ == synced_.sequence) return absl::OkStatus();
  marked_ = synced_.sequence;
  return high_water_.Write(synced_);
}

void StateLog::NotedElsewhere(const LogMark& mark) {
  if (mark == synced_) mark_due_.reset();
}

absl::Status StateLog::CheckFence() const {
  const std::string next = Files(directory_).Path(number_ + 1);
  if (::access(next.c_str(), F_OK) != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      next, ": another coordinator has taken this directory; this is epoch ", epoch_, ", which says nothing more"));
}

absl::Status StateLog::RemoveFilesBefore(int64_t number) const {
  const formats::NumberedFiles files = Files(directory_);
  for (const int64_t each : files.Numbers()) {
    if (each >= number) break;
    if (::unlink(files.Path(each).c_str()) != 0) return formats::FileError("remove", files.Path(each));
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
