#include "server/store/copies.h"

#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "core/digest.h"
#include "formats/atomic_file.h"
#include "formats/file_digest.h"
#include "server/store/change_set.h"
#include "server/store/high_water.h"
#include "server/store/rows.h"
#include "server/store/schema.h"
#include "server/store/scrubber.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;

constexpr int kSetFormat = 1;
constexpr char kLogName[] = "log/000001.log", kHighWaterName[] = "high_water", kIndexName[] = "index.sqlite",
               kFiles[] = "/files/", kSets[] = "/sets/";
constexpr char kExtension[] = ".json";
constexpr int64_t kCopyPieceBytes = int64_t{4} << 20;
constexpr auto kBetween = std::chrono::milliseconds(100);  // two looks at a hook
constexpr int64_t kTermedMs = 5'000;                       // that it has after SIGTERM
// Its output may hold secrets: the end of it goes to a file that only this user reads.
constexpr char kRunHook[] = R"sh(exec 2>/dev/null
trap '' TERM
export CAUSEWAY_COPY_DIR="$1" CAUSEWAY_COPY_SET="$2"
rm -f "$4".*
(trap - TERM; eval "$3") 2>&1 </dev/null | (umask 077; tail -c 65536 >"$4.$$" && mv "$4.$$" "$4")
exit "${PIPESTATUS[0]}")sh";

// A set has the newest snapshot of each fragment, and those that rollbacks after it go back to. It has no updates: sites
// take the parameters of a new lineage whole.
constexpr char kNeeded[] =
    " FROM snapshots AS s WHERE version = (SELECT max(version) FROM snapshots AS n WHERE n.fragment = s.fragment) OR "
    "EXISTS (SELECT 1 FROM rounds AS r WHERE r.fragment = s.fragment AND r.rolled_back_to = s.version)";

std::string BaseOf(const std::string& name) { return fs::path(name).filename(); }

// The names of set files, oldest first.
absl::StatusOr<std::vector<std::string>> SetsIn(const std::string& directory) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, formats::NamesIn(directory + kSets));
  std::erase_if(names, [](const std::string& name) { return !absl::EndsWith(name, kExtension); });
  std::ranges::sort(names);
  return names;
}

// As it is written.
struct CopySet {
  struct File {
    std::string name, xxh3_64;
    int64_t bytes = 0;
    std::string stored() const { return absl::StrCat(kFiles, xxh3_64, "-", BaseOf(name)); }
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(File, name, xxh3_64, bytes)
  };
  int format = kSetFormat;
  std::string run_id, shard, lineage;
  std::vector<std::string> former_lineages;
  int64_t unix_ms = 0;
  uint64_t epoch = 0, sequence = 0;
  std::vector<File> files;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(CopySet, format, run_id, shard, lineage, former_lineages, unix_ms, epoch, sequence,
                                 files)
};

absl::StatusOr<CopySet> ReadSet(const std::string& path, const std::string& run_id, const std::string& shard) {
  CopySet set;
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(path, 1 << 26));
  try {
    nlohmann::json::parse(text).get_to(set);
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", error.what()));
  }
  for (const CopySet::File& file : set.files) {
    const std::string folder = fs::path(file.name).parent_path();
    if (folder == "snapshots" || folder == "segments" || file.name == kLogName || file.name == kHighWaterName) continue;
    return absl::DataLossError(absl::StrCat(path, ": expected files of a state, got ", file.name));
  }
  if (set.format == kSetFormat && set.run_id == run_id && set.shard == shard) return set;
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: expected a copy of run %s, %s, in format %d, got one of run %s, %s, in format %d", path,
                      run_id, shard, kSetFormat, set.run_id, set.shard, set.format));
}

absl::Status SyncFile(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  return ::fdatasync(file.get()) == 0 ? absl::OkStatus() : formats::FileError("sync", path);
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(from));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, from));
  ASSIGN_OR_RETURN(formats::AtomicFile copy, formats::AtomicFile::Create(to));
  std::vector<std::byte> piece(static_cast<size_t>(std::min(size, kCopyPieceBytes)));
  for (int64_t at = 0; at < size; at += std::ssize(piece)) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min<int64_t>(std::ssize(piece), size - at)));
    RETURN_IF_ERROR(formats::ReadAt(file, from, at, part));
    RETURN_IF_ERROR(copy.Append(part));
  }
  return copy.Commit();
}

// A name that Put gives: others in the folder are not ours.
bool IsStored(const std::string& name) { return name.find_first_not_of("0123456789abcdef") == 16 && name[16] == '-'; }

// The files of its state, without those that each set has of its own.
std::set<std::string> StateOf(const CopySet& set) {
  std::set<std::string> names;
  for (const CopySet::File& file : set.files) {
    if (file.name != kLogName && file.name != kHighWaterName) names.insert(file.stored());
  }
  return names;
}

}  // namespace

// ---- The journal's thread ----

Copies::Copies(std::string state_dir, const core::Shard& shard, JournalIdentity identity, CopyOptions options,
               std::function<void()> idle)
    : state_dir_(std::move(state_dir)),
      shard_(shard.Text()),
      identity_(std::move(identity)),
      options_(std::move(options)),
      idle_(std::move(idle)),
      figures_{.directory = options_.directory} {
  const absl::Status made = formats::MakePrivateFolder(options_.directory);
  if (!made.ok()) Show({.directory = options_.directory, .failed = std::string(made.message())});
  thread_ = core::Thread([this] {
    LowerThreadPriority();
    Run();
  });
}

Copies::~Copies() {
  AwaitIdle(0);
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void Copies::Begin() {
  const core::MutexLock lock(mutex_);
  begun_ = wanted_ = true;
}

void Copies::Want() {
  const core::MutexLock lock(mutex_);
  wanted_ = begun_;
}

CopyFigures Copies::figures() const {
  const core::MutexLock lock(mutex_);
  return figures_;
}

void Copies::Show(const CopyFigures& figures) {
  const core::MutexLock lock(mutex_);
  figures_ = figures;
}

// Files that are pruned meanwhile stay in its links.
absl::Status Copies::StageFiles(Database& index, Segments& segments, Staged& staged) const {
  std::error_code error;
  fs::remove_all(Staging(""), error);
  RETURN_IF_ERROR(formats::MakePrivateFolder(Staging("")));
  RETURN_IF_ERROR(index.Run("VACUUM INTO ?", {std::string_view(Staging(kIndexName))}));
  RETURN_IF_ERROR(index.Query(absl::StrCat("SELECT file, hash", kNeeded), {}, [&](const SqlRow& row) {
    staged.files.push_back({.name = "snapshots/" + row.Text(0), .xxh3_64 = row.Text(1)});
    return absl::OkStatus();
  }));
  segments.Roll();
  RETURN_IF_ERROR(
      index.Query("SELECT DISTINCT segment FROM contributions WHERE segment <> 0", {}, [&](const SqlRow& row) {
        staged.files.push_back({.name = Segments::Path("segments", row.Integer(0)), .xxh3_64 = ""});
        return absl::OkStatus();
      }));
  for (const File& file : staged.files) {
    const std::string from = absl::StrCat(state_dir_, "/", file.name);
    if (::link(from.c_str(), Staging(BaseOf(file.name)).c_str()) != 0) return formats::FileError("link", from);
  }
  return absl::OkStatus();
}

void Copies::Stage(Database& index, Segments& segments, const LogMark& end) {
  {
    const core::MutexLock lock(mutex_);
    if (!wanted_ || staged_) return;
  }
  if (!ReadMeta(index, "manifest").value_or(std::nullopt)) return;  // until the seed is whole
  Staged staged{.files = {}, .end = end};
  const absl::Status status = StageFiles(index, segments, staged);
  const core::MutexLock lock(mutex_);
  wanted_ = false;
  if (status.ok()) staged_ = std::move(staged);
  if (!status.ok()) figures_.failed = std::string(status.message());
  changed_.NotifyAll();
}

void Copies::AwaitIdle(std::optional<int64_t> hooks_end_ms) {
  core::MutexLock lock(mutex_);
  if (hooks_end_ms) hooks_end_ = core::SystemClock().Now() + std::chrono::milliseconds(*hooks_end_ms);
  lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !staged_; });
}

void Copies::End(bool makes_last, const std::function<void()>& stage) {
  AwaitIdle(0);
  if (!makes_last) return;
  Want();
  {
    const core::MutexLock lock(mutex_);
    hooks_end_ = core::SystemClock().Now() + std::chrono::milliseconds(options_.last_hook_ms);
  }
  stage();
  AwaitIdle();
}

// ---- The copier's ----

void Copies::Run() {
  while (true) {
    std::optional<Staged> staged;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || staged_; });
      if (!staged_) return;
      staged = staged_;
    }
    CopyFigures figures = this->figures();
    absl::Status status = Make(*std::move(staged), figures);
    if (!status.ok()) figures = this->figures();
    if (status.ok() && !options_.hook.empty()) {
      Show(figures);
      status = RunHook(figures);
    }
    figures.failed = std::string(status.message());
    std::error_code error;
    fs::remove_all(Staging(""), error);
    {
      const core::MutexLock lock(mutex_);
      figures_ = figures;
      staged_.reset();
      changed_.NotifyAll();
    }
    idle_();
  }
}

// The rows say that they are a copy, and hold nothing that only the run's own coordinators may know.
absl::Status Copies::WriteLog(const std::string& set, const Staged& staged) const {
  const std::string index = Staging(kIndexName), path = Staging(BaseOf(kLogName));
  {
    ASSIGN_OR_RETURN(const auto rows, Database::Open(index, Database::Mode::kReadWrite));
    RETURN_IF_ERROR(rows->Script("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"));
    RETURN_IF_ERROR(rows->Run("DELETE FROM meta WHERE key IN ('secret', 'coordinators', ?, ?)",
                              {std::string_view(kHandedTo), std::string_view(kUnsyncedEnd)}));
    RETURN_IF_ERROR(rows->Run(absl::StrCat("DELETE FROM snapshots WHERE file NOT IN (SELECT file", kNeeded, ")")));
    RETURN_IF_ERROR(LetUpdatesGo(*rows, "update_segment <> 0"));
    RETURN_IF_ERROR(WriteMeta(*rows, kCopiedAs, std::string_view(set)));
  }
  ASSIGN_OR_RETURN(const std::string all, AllRows(index, kTables));
  ASSIGN_OR_RETURN(LogFile log, LogFile::Create(path, staged.end, identity_.epoch));
  RETURN_IF_ERROR(log.Append(RecordKind::kState, all, /*sync=*/false));
  if (::truncate(path.c_str(), log.bytes()) != 0) return formats::FileError("cut", path);
  ASSIGN_OR_RETURN(HighWater high_water, HighWater::Open(Staging(kHighWaterName)));
  return high_water.Write(log.end());
}

absl::Status Copies::Put(File& file, CopyFigures& figures) const {
  const std::string staged = Staging(BaseOf(file.name));
  std::error_code error;
  file.bytes = static_cast<int64_t>(fs::file_size(staged, error));
  if (file.xxh3_64.empty()) {
    ASSIGN_OR_RETURN(const formats::FileDigest digest, formats::DigestOfFile(staged));
    file.xxh3_64 = core::DigestText(digest.hash);
  }
  const std::string to = options_.directory + CopySet::File{file.name, file.xxh3_64}.stored();
  figures.bytes += file.bytes;
  const auto there = static_cast<int64_t>(fs::file_size(to, error));
  if (!error && there == file.bytes) return absl::OkStatus();
  figures.new_bytes += file.bytes;
  fs::remove(to, error);
  return ::link(staged.c_str(), to.c_str()) == 0 ? SyncFile(to) : CopyFile(staged, to);  // on another file system
}

absl::Status Copies::Make(Staged staged, CopyFigures& figures) const {
  const core::Clock::TimePoint started = core::SystemClock().Now();
  const std::string& directory = options_.directory;
  for (const char* folder : {kFiles, kSets}) {  // not `directory`: that it is gone is to be seen
    const std::string path = directory + folder;
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) return formats::FileError("create", path);
  }
  ASSIGN_OR_RETURN(std::vector<std::string> sets, SetsIn(directory));
  CopySet set{.run_id = options_.run_id,
              .shard = shard_,
              .lineage = identity_.lineage,
              .former_lineages = identity_.former_lineages,
              .unix_ms = core::SystemClock().UnixMs(),
              .epoch = identity_.epoch,
              .sequence = staged.end.sequence + 1,
              .files = {}};
  for (const std::string& each : sets) {
    ASSIGN_OR_RETURN(const CopySet before, ReadSet(absl::StrCat(directory, kSets, each), set.run_id, shard_));
    std::set<std::string> lineages(set.former_lineages.begin(), set.former_lineages.end());
    lineages.insert(set.lineage);
    if (!lineages.contains(before.lineage) &&
        std::ranges::none_of(before.former_lineages, [&](const auto& former) { return lineages.contains(former); })) {
      return absl::FailedPreconditionError(absl::StrCat(directory, kSets, each, " is of another run of that run_id: ",
                                                        "expected a folder of its own for each, or an empty one"));
    }
    set.unix_ms = std::max(set.unix_ms, before.unix_ms);
  }
  const auto name = [&set] {
    const absl::Time time = absl::FromUnixMillis(set.unix_ms);
    return absl::StrFormat("%s-%012d", absl::FormatTime("%Y%m%dT%H%M%SZ", time, absl::UTCTimeZone()), set.sequence);
  };
  if (!sets.empty() && sets.back() >= name()) set.unix_ms += 1000;  // names rise, though the clock was set back
  figures.set = name();
  figures.unix_ms = set.unix_ms;
  figures.bytes = figures.new_bytes = 0;
  RETURN_IF_ERROR(WriteLog(figures.set, staged));
  // The remains of an attempt that failed go first, and then the oldest set: there may have been no room.
  RETURN_IF_ERROR(Prune(sets, figures.failed.empty() ? options_.keep : options_.keep - 1));
  for (const char* name : {kHighWaterName, kLogName}) staged.files.push_back({.name = name, .xxh3_64 = ""});
  for (File& file : staged.files) {
    RETURN_IF_ERROR(Put(file, figures));
    set.files.push_back({file.name, file.xxh3_64, file.bytes});
  }
  RETURN_IF_ERROR(formats::SyncFolderOf(directory + kFiles));
  sets.push_back(figures.set + kExtension);
  RETURN_IF_ERROR(
      formats::WriteFileAtomically(absl::StrCat(directory, kSets, sets.back()), nlohmann::json(set).dump(1) + "\n"));
  RETURN_IF_ERROR(Prune(sets, options_.keep));
  figures.seconds = std::chrono::duration<double>(core::SystemClock().Now() - started).count();
  return absl::OkStatus();
}

// Sets beyond the newest `keep`, those of a state that a newer set has as well, and files that no set names.
absl::Status Copies::Prune(std::vector<std::string>& sets, int keep) const {
  const std::string& directory = options_.directory;
  std::error_code error;
  const fs::space_info space = fs::space(state_dir_, error);
  const bool is_short = !error && static_cast<int64_t>(space.available) < 2 * options_.min_free_bytes;
  std::set<std::string> named, newer;
  std::vector<std::string> kept;
  for (auto name = sets.rbegin(); name != sets.rend(); ++name) {
    const std::string path = absl::StrCat(directory, kSets, *name);
    ASSIGN_OR_RETURN(const CopySet set, ReadSet(path, options_.run_id, shard_));
    const std::set<std::string> state = StateOf(set);
    if (std::ssize(kept) >= (is_short ? 1 : std::max(1, keep)) || state == newer) {
      if (::unlink(path.c_str()) != 0) return formats::FileError("remove", path);
      continue;
    }
    kept.insert(kept.begin(), *name);
    newer = state;
    for (const CopySet::File& file : set.files) named.insert(file.stored());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, formats::NamesIn(directory + kFiles));
  for (const std::string& name : names) {
    if (IsStored(name) && !named.contains(kFiles + name)) fs::remove(absl::StrCat(directory, kFiles, name), error);
  }
  sets = std::move(kept);
  return absl::OkStatus();
}

bool Copies::HookMustEnd(core::Clock::TimePoint started) const {
  const core::Clock::TimePoint now = core::SystemClock().Now();
  core::MutexLock lock(mutex_);
  lock.WaitFor(changed_, kBetween, [] { return false; });
  return now > started + std::chrono::milliseconds(options_.hook_ms) || (hooks_end_ && now > *hooks_end_);
}

absl::Status Copies::RunHook(CopyFigures& figures) const {
  const core::Clock::TimePoint started = core::SystemClock().Now();
  const std::string log = state_dir_ + "/copy_hook.log";
  std::vector<std::string> words = {"bash",      "-c",          kRunHook, "--copy_hook", options_.directory,
                                    figures.set, options_.hook, log};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawnattr_t own;
  posix_spawnattr_init(&own);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&own, &none);
  posix_spawnattr_setsigdefault(&own, &all);
  posix_spawnattr_setpgroup(&own, 0);
  posix_spawnattr_setflags(&own, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t child = -1;
  const int failed = ::posix_spawnp(&child, "bash", nullptr, &own, arguments.data(), environ);
  posix_spawnattr_destroy(&own);
  if (failed != 0) return absl::UnavailableError(absl::StrCat("--copy_hook: cannot run bash: ", std::strerror(failed)));
  std::optional<core::Clock::TimePoint> termed;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0) {
    if (!HookMustEnd(started)) continue;
    const core::Clock::TimePoint now = core::SystemClock().Now();
    ::kill(-child, termed && now > *termed + std::chrono::milliseconds(std::min(kTermedMs, options_.hook_ms))
                       ? SIGKILL
                       : SIGTERM);
    if (!termed) termed = now;
  }
  figures.hook_s = std::chrono::duration<double>(core::SystemClock().Now() - started).count();
  if (::getpid() == 1) {  // of a container: what has outlived its parent in a hook is this process's to reap
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  if (ended < 0) return absl::UnknownError("--copy_hook: its end cannot be waited for");
  figures.hook_ended = termed
                           ? absl::StrFormat("after %.0f s, by the coordinator, which waits no longer", figures.hook_s)
                       : WIFEXITED(status) ? absl::StrCat("with ", WEXITSTATUS(status))
                                           : absl::StrCat("by signal ", WTERMSIG(status));
  if (!termed && status == 0) {
    figures.sent = figures.set;
    return absl::OkStatus();
  }
  return absl::UnknownError(absl::StrCat("--copy_hook ended ", figures.hook_ended, ", for the set ", figures.set,
                                         "; what it printed is in ", log));
}

// ---- Restoring ----

absl::StatusOr<std::string> RestoreCopy(const std::string& from, const std::string& state_dir,
                                        const std::string& run_id, const core::Shard& shard,
                                        const std::function<void(const std::string&)>& progress) {
  const std::string mark = state_dir + "/restoring";  // while it lies here, the files are another restore's remains
  std::error_code error;
  const absl::StatusOr<std::vector<std::string>> logs = formats::NamesIn(state_dir + "/log");
  if (logs.ok() && absl::c_any_of(*logs, [](const std::string& name) { return absl::EndsWith(name, ".log"); })) {
    fs::remove(mark, error);
    return "";
  }
  const bool is_named = absl::EndsWith(from, kExtension);
  const std::string directory = is_named ? (fs::path(from).parent_path() / "..").lexically_normal().string() : from;
  std::vector<std::string> sets = {BaseOf(from)};
  if (!is_named) {
    absl::StatusOr<std::vector<std::string>> found = SetsIn(directory);
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    sets = found.ok() ? *std::move(found) : std::vector<std::string>();
  }
  if (sets.empty()) {
    return absl::NotFoundError(absl::StrCat("--restore_from: expected a folder that --copy_to has filled, got ",
                                            directory, ", where sets/ holds no set"));
  }
  const auto read = [&](const std::string& name) -> absl::StatusOr<CopySet> {
    ASSIGN_OR_RETURN(const CopySet set, ReadSet(absl::StrCat(directory, kSets, name), run_id, shard.Text()));
    progress(absl::StrCat("--restore_from: reads the ", set.files.size(), " files of ", name));
    for (const CopySet::File& file : set.files) {
      uint64_t hash = 0;
      if (!absl::SimpleHexAtoi(file.xxh3_64, &hash)) return absl::DataLossError(name + ": a digest is none");
      RETURN_IF_ERROR(formats::CheckFile(directory + file.stored(), {file.bytes, hash}));
    }
    return set;
  };
  const absl::StatusOr<CopySet> set = read(sets.back());
  if (!set.ok()) {
    std::string others = is_named ? "" : "; no other set is whole";
    for (auto name = sets.rbegin() + 1; name != sets.rend() && !absl::IsFailedPrecondition(set.status()); ++name) {
      if (!read(*name).ok()) continue;
      others = absl::StrCat("; the newest set that is whole is --restore_from=", directory, kSets, *name);
      break;
    }
    return absl::Status(set.status().code(),
                        absl::StrCat("--restore_from: ", sets.back(), ": ", std::string(set.status().message()), others,
                                     ". Nothing was changed"));
  }
  const bool goes_on = formats::Exists(mark);
  RETURN_IF_ERROR(formats::WriteFileAtomically(mark, sets.back() + "\n"));
  for (const std::string folder : {"/snapshots", "/segments", "/log"}) {
    if (!goes_on && !formats::NamesIn(state_dir + folder).value_or(std::vector<std::string>()).empty()) {
      fs::remove(mark, error);
      return absl::FailedPreconditionError(
          absl::StrCat("--restore_from: expected an empty state directory, got files in ", state_dir, folder,
                       "; move them away. Nothing was changed"));
    }
    fs::remove_all(state_dir + folder, error);
    RETURN_IF_ERROR(formats::MakePrivateFolder(state_dir + folder));
  }
  for (const CopySet::File& file : set->files) {  // its log is the last: without it there is no state
    const std::string to = absl::StrCat(state_dir, "/", file.name);
    RETURN_IF_ERROR(CopyFile(directory + file.stored(), to));
    RETURN_IF_ERROR(formats::SyncFolderOf(to));
  }
  fs::remove(mark, error);
  return std::string(absl::StripSuffix(sets.back(), kExtension));
}

}  // namespace causeway::server
