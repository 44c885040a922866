#include "server/store/mirror_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/file_digest.h"
#include "server/store/journal_files.h"
#include "server/store/schema.h"
#include "server/store/snapshots.h"
#include "server/store/state_log.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolders[] = {"snapshots", "segments", "log"};
constexpr int kTermBits = 32, kPlaceBits = 24;

std::string NotePath(const std::string& state_dir) { return state_dir + "/standby.json"; }
std::string HighWaterPath(const std::string& state_dir) { return state_dir + "/high_water"; }

bool IsNumbered(const std::string& name, std::string_view extension) {
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  return digits > 0 && name.substr(digits) == extension;
}

absl::Status CheckName(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  const bool known = parts.size() == 2 && ((parts[0] == "log" && IsNumbered(parts[1], ".log")) ||
                                           (parts[0] == "segments" && IsNumbered(parts[1], ".segment")) ||
                                           (parts[0] == "snapshots" && IsSnapshotFileName(parts[1])));
  if (known) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected the name of a log, segment or snapshot, got ", name));
}

// A record of which a part is missing counts for nothing; the leader sends it again.
absl::Status CutTornRecord(const std::string& path, bool zeros_alone) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  ASSIGN_OR_RETURN(const LogEnd end, FindLogEnd(size, [&](int64_t offset, std::span<std::byte> bytes) {
                     return formats::ReadAt(file, path, offset, bytes);
                   }));
  if (end.offset == size || (zeros_alone && !end.clean)) return absl::OkStatus();
  return ::truncate(path.c_str(), end.offset) == 0 ? absl::OkStatus() : formats::FileError("cut", path);
}

// Nothing: there is no such file.
template <typename Note>
absl::StatusOr<std::optional<Note>> ReadNote(const std::string& path, Note (*convert)(const nlohmann::json& json)) {
  if (!formats::Exists(path)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(path, 1 << 20));
  try {
    return convert(nlohmann::json::parse(text));
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", error.what()));
  }
}

}  // namespace

absl::StatusOr<std::optional<StandbyNote>> ReadStandbyNote(const std::string& state_dir) {
  return ReadNote<StandbyNote>(NotePath(state_dir), [](const nlohmann::json& json) {
    return StandbyNote{.leader = json.at("leader"),
                       .address = json.at("address"),
                       .place = json.at("place"),
                       .promoted = json.at("promoted"),
                       .handed_over = json.at("handed_over"),
                       .own = json.at("own"),
                       .seen = json.at("seen")};
  });
}

absl::Status RemoveStandbyNote(const std::string& state_dir) {
  const std::string path = NotePath(state_dir);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return formats::FileError("remove", path);
  return formats::SyncFolderOf(path);
}

absl::StatusOr<KnownStandbys> ReadKnownStandbys(const std::string& state_dir) {
  ASSIGN_OR_RETURN(const std::optional<KnownStandbys> known,
                   ReadNote<KnownStandbys>(state_dir + "/standbys.json", [](const nlohmann::json& json) {
                     return KnownStandbys{json.at("addresses"), json.at("handed_to"), json.at("handed_at")};
                   }));
  return known.value_or(KnownStandbys());
}

absl::Status WriteKnownStandbys(const std::string& state_dir, const KnownStandbys& known) {
  const nlohmann::json json = {
      {"addresses", known.addresses}, {"handed_to", known.handed_to}, {"handed_at", known.handed_at}};
  return formats::WriteFileAtomically(state_dir + "/standbys.json", json.dump() + "\n");
}

absl::StatusOr<LastKnown> ReadLastKnown(const std::string& state_dir, uint64_t mark) {
  LastKnown last;
  absl::StatusOr<std::optional<StateLog::Found>> log =
      mark > 0 ? StateLog::ReadUpTo(state_dir, mark) : StateLog::Read(state_dir);
  if (mark == 0 && absl::IsDataLoss(log.status())) {  // a relaxed one, after a loss of power
    ASSIGN_OR_RETURN(const uint64_t synced, StateLog::ReadMark(state_dir));
    log = StateLog::ReadUpTo(state_dir, synced);
  }
  ASSIGN_OR_RETURN(const std::optional<StateLog::Found> found, std::move(log));
  if (!found) return last;
  ASSIGN_OR_RETURN(const auto rows, BuildIndex(state_dir, found->changes, /*expected_new=*/false));
  RETURN_IF_ERROR(rows->Query("SELECT site FROM sites WHERE state <> 'gone'", {}, [&](const SqlRow& row) {
    last.sites.insert(row.Text(0));
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(last.epoch, LastEpoch(*rows));
  ASSIGN_OR_RETURN(last.coordinators, ReadCoordinators(*rows));
  ASSIGN_OR_RETURN(const std::optional<std::string> lineage, ReadMeta(*rows, "lineage"));
  last.lineage = lineage.value_or("");
  ASSIGN_OR_RETURN(const std::optional<std::string> run_config, ReadMeta(*rows, "run_config"));
  last.run_config = run_config.value_or("");
  ASSIGN_OR_RETURN(const std::optional<std::string> handed_to, ReadMeta(*rows, kHandedTo));
  last.handed_to = handed_to.value_or("");
  return last;
}

uint64_t TermOf(uint64_t epoch) { return epoch >> kTermBits; }

bool IsOlder(uint64_t epoch, uint64_t than) {
  return epoch < than && (TermOf(epoch) < TermOf(than) || epoch >> kPlaceBits == than >> kPlaceBits);
}

uint64_t EpochOfPromotion(uint64_t last, int place) {
  return ((TermOf(last) + 1) << kTermBits) + (static_cast<uint64_t>(place) << kPlaceBits);
}

absl::StatusOr<std::unique_ptr<MirrorDirectory>> MirrorDirectory::Open(const std::string& path,
                                                                       const std::string& leader) {
  ASSIGN_OR_RETURN(auto directory, StateDirectory::Open(path));
  ASSIGN_OR_RETURN(const std::optional<StandbyNote> note, ReadStandbyNote(path));
  if (note && note->promoted) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--standby_of: ", path, " was promoted, and leads: start it without --standby_of. Nothing was changed"));
  }
  const formats::NumberedFiles logs = StateLog::Files(path);
  RETURN_IF_ERROR(formats::MakePrivateFolder(logs.folder));
  // A leader's log has zeros ahead, which a copy has not.
  for (const int64_t number : logs.Numbers()) {
    RETURN_IF_ERROR(CutTornRecord(logs.Path(number), /*zeros_alone=*/!note));
  }
  std::unique_ptr<MirrorDirectory> mirror(new MirrorDirectory(std::move(directory), note.value_or(StandbyNote{})));
  mirror->note_.leader = leader;
  mirror->is_copy_ = note.has_value() || logs.Numbers().empty();
  ASSIGN_OR_RETURN(const HighWater::Found marks, HighWater::Read(HighWaterPath(path)));
  if (note) mirror->mark_ = marks.mark;  // a leader's own is ahead of what it has synced of a copy
  if (note) RETURN_IF_ERROR(mirror->SyncAll());
  return mirror;
}

// A process that was killed may have left files that are not on the disk, and the leader will hear that they are here.
absl::Status MirrorDirectory::SyncAll() const {
  for (const char* folder : kFolders) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, formats::NamesIn(Path(folder)));
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(Path(folder), "/", name);
      ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
      if (::fdatasync(file.get()) != 0) return formats::FileError("sync", path);
    }
    RETURN_IF_ERROR(formats::SyncFolderOf(Path(folder) + "/."));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MirrorFile>> MirrorDirectory::Files() {
  std::vector<MirrorFile> files;
  for (const char* folder : kFolders) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, formats::NamesIn(Path(folder)));
    for (const std::string& file : names) {
      const std::string name = absl::StrCat(folder, "/", file);
      if (!CheckName(name).ok()) continue;
      if (!digested_.contains(name)) {
        ASSIGN_OR_RETURN(const formats::FileDigest digest, formats::DigestOfFile(Path(name)));
        digested_[name] = {name, digest.bytes, digest.hash};
      }
      files.push_back(digested_.at(name));
    }
  }
  return files;
}

absl::Status MirrorDirectory::SetAside() {
  const formats::NumberedFiles aside{Path("set_aside"), ""};
  RETURN_IF_ERROR(formats::MakePrivateFolder(aside.folder));
  const std::vector<int64_t> numbers = aside.Numbers();
  const std::string to = aside.Path(numbers.empty() ? 1 : numbers.back() + 1);
  RETURN_IF_ERROR(formats::MakePrivateFolder(to));
  high_water_.reset();
  unsynced_.clear();
  digested_.clear();
  mark_ = {};
  for (const char* name : {"high_water", "journal.sqlite", "snapshots", "segments", "log"}) {  // the mark first
    std::error_code error;
    if (formats::Exists(Path(name))) fs::rename(Path(name), absl::StrCat(to, "/", name), error);
    if (error)
      return absl::UnavailableError(absl::StrCat("cannot move ", Path(name), " to ", to, ": ", error.message()));
  }
  for (const char* folder : kFolders) RETURN_IF_ERROR(formats::MakePrivateFolder(Path(folder)));
  return formats::SyncFolderOf(Path("log"));
}

absl::Status WriteStandbyNote(const std::string& state_dir, const StandbyNote& note) {
  const nlohmann::json json = {{"leader", note.leader},          {"address", note.address}, {"place", note.place},
                               {"promoted", note.promoted},      {"own", note.own},         {"seen", note.seen},
                               {"handed_over", note.handed_over}};
  return formats::WriteFileAtomically(NotePath(state_dir), json.dump() + "\n");
}

absl::Status MirrorDirectory::Begin(int place, const std::string& address) {
  removed_.clear();
  note_.place = place;
  note_.address = address;
  is_copy_ = true;
  return WriteStandbyNote(path_, note_);
}

absl::StatusOr<const formats::FileDescriptor*> MirrorDirectory::FileFor(const MirrorPiece& piece) {
  const std::string path = Path(piece.name);
  digested_.erase(piece.name);
  auto found = unsynced_.find(piece.name);
  if (found == unsynced_.end()) {
    const bool is_new = !formats::Exists(path);
    formats::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!file.is_open()) return formats::FileError("open", path);
    if (is_new) folders_.insert(path);
    ASSIGN_OR_RETURN(const int64_t synced, formats::FileSize(file, path));
    found = unsynced_.emplace(piece.name, Unsynced{std::move(file), synced}).first;
  }
  const formats::FileDescriptor& file = found->second.file;
  if (piece.offset == 0 && ::ftruncate(file.get(), 0) != 0) return formats::FileError("cut", path);
  if (piece.offset == 0) found->second.synced = 0;
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  if (size == piece.offset) return &file;
  return absl::OutOfRangeError(
      absl::StrCat(path, ": expected bytes from ", size, " on, got those from ", piece.offset, " on"));
}

absl::Status MirrorDirectory::Take(const MirrorPiece& piece) {
  if (piece.mark.sequence > 0) return Mark(piece.mark);
  RETURN_IF_ERROR(CheckName(piece.name));
  if (piece.removed) {
    removed_.insert(piece.name);
    return absl::OkStatus();
  }
  removed_.erase(piece.name);
  ASSIGN_OR_RETURN(const formats::FileDescriptor* const file, FileFor(piece));
  if (::lseek(file->get(), piece.offset, SEEK_SET) < 0) return formats::FileError("write", Path(piece.name));
  return formats::WriteAll(*file, Path(piece.name), std::as_bytes(std::span(piece.bytes)));
}

absl::Status MirrorDirectory::Mark(const LogMark& mark) {
  for (const auto& [name, one] : unsynced_) {
    if (::fdatasync(one.file.get()) == 0) continue;
    const absl::Status failed = formats::FileError("sync", Path(name));
    // Bytes that were not synced may be gone, though they can be read, and no later sync would say so.
    for (const auto& [of, each] : unsynced_) {
      if (::ftruncate(each.file.get(), each.synced) != 0) return formats::FileError("cut", Path(of));
      digested_.erase(of);
    }
    unsynced_.clear();
    return failed;
  }
  unsynced_.clear();
  for (const std::string& path : folders_) RETURN_IF_ERROR(formats::SyncFolderOf(path));
  folders_.clear();
  if (!high_water_) {
    ASSIGN_OR_RETURN(high_water_, HighWater::Open(HighWaterPath(path_)));
  }
  RETURN_IF_ERROR(high_water_->Write(mark));
  mark_ = mark;
  for (const std::string& name : removed_) {
    if (::unlink(Path(name).c_str()) != 0 && errno != ENOENT) return formats::FileError("remove", Path(name));
  }
  removed_.clear();
  return absl::OkStatus();
}

absl::Status MirrorDirectory::CheckStart(const JournalOptions& options, uint64_t mark, bool handed_over) {
  const core::MutexLock lock(start_);
  JournalFiles files;
  files.directory = std::move(directory_);
  const absl::Status status = files.CheckStart(options, mark, handed_over);
  directory_ = std::move(files.directory);
  return status;
}

absl::Status MirrorDirectory::Promote(bool handed_over, uint64_t seen) {
  if (is_copy_ && mark_.sequence == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the first copy of ", note_.leader, " is not whole: there is nothing to lead from"));
  }
  note_.promoted = true;
  note_.own = !is_copy_;
  note_.handed_over = handed_over;
  note_.seen = seen;
  return WriteStandbyNote(path_, note_);
}

}  // namespace causeway::server
