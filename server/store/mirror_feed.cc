#include "server/store/mirror_feed.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "formats/file_digest.h"
#include "formats/posix_file.h"
#include "server/store/segments.h"

namespace causeway::server {
namespace {

constexpr int64_t kMomentMs = 20;  // a delay is known to this
constexpr double kNearS = 2;       // behind: a standby to which the run can be handed over
constexpr int64_t kNearBytes = int64_t{256} << 20;

bool IsLog(const std::string& name) { return absl::StartsWith(name, "log/"); }

absl::StatusOr<int64_t> SizeOf(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  return formats::FileSize(file, path);
}

// The XXH3-64 of the file's first bytes; nothing: it is not there, or shorter.
absl::StatusOr<std::optional<uint64_t>> DigestOfBeginning(const std::string& path, int64_t bytes) {
  const formats::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  if (!file.is_open()) return formats::FileError("open", path);
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  if (size < bytes) return std::nullopt;
  formats::RunningDigest digest;
  std::vector<std::byte> piece(MirrorFeed::kPieceBytes);
  for (int64_t at = 0; at < bytes; at += std::ssize(piece)) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min<int64_t>(std::ssize(piece), bytes - at)));
    RETURN_IF_ERROR(formats::ReadAt(file, path, at, part));
    digest.Add(part);
  }
  return digest.value().hash;
}

}  // namespace

absl::StatusOr<std::map<std::string, int64_t>> Agreeing(const std::string& directory,
                                                        const std::vector<MirrorFile>& copy) {
  std::map<std::string, int64_t> agreeing;
  ASSIGN_OR_RETURN(std::vector<std::string> logs, formats::NamesIn(directory + "/log"));
  const std::string oldest_log = logs.empty() ? "" : "log/" + *std::ranges::min_element(logs);
  for (const MirrorFile& file : copy) agreeing[file.name] = 0;  // whatever is not there is removed
  for (const MirrorFile& file : copy) {
    const std::string path = absl::StrCat(directory, "/", file.name);
    ASSIGN_OR_RETURN(const std::optional<uint64_t> digest, DigestOfBeginning(path, file.bytes));
    if (digest == file.digest) agreeing[file.name] = file.bytes;
    if (digest == file.digest || !IsLog(file.name)) continue;
    if (!formats::Exists(path) && file.name < oldest_log) continue;  // it was pruned meanwhile
    return absl::FailedPreconditionError(
        absl::StrCat(file.name, ": expected the beginning of this coordinator's, got ",
                     digest ? "other bytes" : "a file that it has not, or not as long"));
  }
  return agreeing;
}

MirrorFeed::MirrorFeed(std::string directory, const core::Clock* clock)
    : directory_(std::move(directory)), clock_(*clock) {}

void MirrorFeed::Serve(const std::string& address, std::map<std::string, int64_t> held) {
  const core::MutexLock lock(mutex_);
  address_ = address;
  queued_ = std::move(held);
}

void MirrorFeed::Grown(const std::string& name, int64_t to, const LogMark& mark) {
  const core::MutexLock lock(mutex_);
  int64_t& queued = queued_[name];
  if (mark.sequence > newest_.sequence) {
    newest_ = mark;
    const int64_t now_ms = clock_.NowMs();
    if (moments_.empty() || now_ms - moments_.back().at_ms >= kMomentMs) moments_.push_back({mark.sequence, now_ms});
  }
  if (to > queued || mark.sequence > 0) Add({.name = name, .from = queued, .to = std::max(to, queued), .mark = mark});
  queued = std::max(to, queued);
}

void MirrorFeed::Replaced(const std::string& name, int64_t bytes) {
  const core::MutexLock lock(mutex_);
  Add({.name = name, .to = bytes});
  queued_[name] = bytes;
}

void MirrorFeed::Swept(const std::set<std::string>& present) {
  const core::MutexLock lock(mutex_);
  std::erase_if(queued_, [&](const auto& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (present.contains(file.first)) return false;
    Add({.name = file.first, .removed = true});
    return true;
  });
}

void MirrorFeed::Add(Place place) {
  unsent_ += place.to - place.from;
  total_ += place.to - place.from;
  changed_.NotifyAll();
  if (!places_.empty()) {
    Place& last = places_.back();
    if (last.name == place.name && last.to == place.from && !last.removed && !place.removed) {
      last.to = place.to;
      if (place.mark.sequence > 0) last.mark = place.mark;
      return;
    }
  }
  places_.push_back(std::move(place));
  if (places_.size() > kMostPlaces) Condense();
}

// One place a file: the log last, since it names the others, and what is gone at the end.
void MirrorFeed::Condense() {
  std::map<std::string, Place> files, logs, gone;
  for (Place& place : places_) {
    if (place.removed) {
      for (auto* const some : {&files, &logs}) {
        const auto found = some->find(place.name);
        if (found == some->end()) continue;
        unsent_ -= found->second.to - found->second.from;
        some->erase(found);
      }
      gone[place.name] = std::move(place);
      continue;
    }
    auto& some = IsLog(place.name) ? logs : files;
    const auto [found, is_new] = some.try_emplace(place.name, place);
    if (is_new) continue;
    unsent_ -= place.from == 0 ? found->second.to - found->second.from : 0;  // it was replaced
    if (place.from == 0) found->second.from = 0;
    found->second.to = place.to;
    if (place.mark.sequence > 0) found->second.mark = place.mark;
  }
  places_.clear();
  for (auto* const some : {&files, &logs, &gone}) {
    for (auto& [name, place] : *some) places_.push_back(std::move(place));
  }
}

bool MirrorFeed::MarkIsDue() const {
  return sent_.sequence > marked_.sequence && skipped_.empty() &&
         (places_.empty() || clock_.NowMs() - marked_ms_ >= kMarkMs);
}

std::optional<MirrorFeed::Place> MirrorFeed::Take() {
  Place& first = places_.front();
  Place part = first;
  part.to = std::min(first.to, first.from + kPieceBytes);
  if (part.to < first.to) part.mark = {};
  unsent_ -= part.to - part.from;
  first.from = part.to;
  if (first.from == first.to) places_.pop_front();
  if (part.removed) skipped_.erase(part.name);
  if (!skipped_.contains(part.name)) return part;
  return std::nullopt;
}

absl::Status MirrorFeed::Read(const Place& part, std::string& bytes) const {
  const std::string path = absl::StrCat(directory_, "/", part.name);
  const formats::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() && errno == ENOENT) return absl::NotFoundError(path);
  if (!file.is_open()) return formats::FileError("open", path);
  bytes.resize(static_cast<size_t>(part.to - part.from));
  return formats::ReadAt(file, path, part.from, std::as_writable_bytes(std::span(bytes)));
}

absl::StatusOr<MirrorPiece> MirrorFeed::Next() {
  while (true) {
    std::optional<Place> part;
    {
      core::MutexLock lock(mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return orders_.stopped || !orders_.say.empty() || MarkIsDue() || !places_.empty() ||
               (orders_.finished && acknowledged_ == newest_.sequence);
      };
      if (!lock.WaitFor(changed_, std::chrono::milliseconds(kBeatMs), ready)) return MirrorPiece();
      if (orders_.stopped) return absl::CancelledError("the stream has ended");
      if (!orders_.say.empty()) {
        MirrorPiece said;
        said.said.swap(orders_.say);
        return said;
      }
      if (MarkIsDue()) {
        marked_ = sent_;
        marked_ms_ = clock_.NowMs();
        return MirrorPiece{.name = "", .bytes = "", .mark = marked_};
      }
      if (places_.empty()) return absl::OutOfRangeError("the standby has all");
      part = Take();
    }
    if (!part) continue;
    MirrorPiece piece{.name = part->name, .offset = part->from, .bytes = "", .removed = part->removed, .mark = {}};
    const absl::Status read = part->to > part->from ? Read(*part, piece.bytes) : absl::OkStatus();
    if (!read.ok() && !absl::IsNotFound(read)) return read;
    {
      const core::MutexLock lock(mutex_);
      if (!read.ok()) skipped_.insert(part->name);
      if (read.ok() && part->mark.sequence > 0) sent_ = part->mark;
    }
    if (part->removed || !piece.bytes.empty()) return piece;
  }
}

void MirrorFeed::Acknowledged(uint64_t sequence, const std::string& unfit) {
  const core::MutexLock lock(mutex_);
  unfit_ = unfit;
  acknowledged_ = std::max(acknowledged_, sequence);
  while (!moments_.empty() && moments_.front().sequence <= acknowledged_) moments_.pop_front();
  changed_.NotifyAll();
}

bool MirrorFeed::AwaitAcknowledged(core::Clock::TimePoint until) {
  core::MutexLock lock(mutex_);
  const uint64_t newest = newest_.sequence;
  lock.WaitFor(changed_, until - clock_.Now(),
               [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return orders_.stopped || acknowledged_ >= newest; });
  return acknowledged_ >= newest;
}

void MirrorFeed::Finish() {
  const core::MutexLock lock(mutex_);
  orders_.finished = true;
  changed_.NotifyAll();
}

void MirrorFeed::Say(const std::string& text) {
  const core::MutexLock lock(mutex_);
  orders_.say = text;
  changed_.NotifyAll();
}

void MirrorFeed::Stop() {
  const core::MutexLock lock(mutex_);
  orders_.stopped = true;
  changed_.NotifyAll();
}

MirrorFigures MirrorFeed::figures() const {
  const core::MutexLock lock(mutex_);
  MirrorFigures figures{
      .address = address_, .sequence = acknowledged_, .unfit = unfit_, .bytes_behind = unsent_, .bytes = total_};
  figures.records_behind = newest_.sequence - std::min(newest_.sequence, acknowledged_);
  if (!moments_.empty()) figures.seconds_behind = static_cast<double>(clock_.NowMs() - moments_.front().at_ms) * 1e-3;
  return figures;
}

absl::Status MirrorFeeds::Begin(const std::shared_ptr<MirrorFeed>& feed, const LogFile& log) {
  {
    const core::MutexLock lock(mutex_);
    feeds_.push_back(feed);
  }
  // A snapshot that is saved meanwhile may be shown twice.
  for (const char* folder : {"snapshots", "segments"}) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, formats::NamesIn(absl::StrCat(directory_, "/", folder)));
    for (const std::string& file : names) {
      const std::string name = absl::StrCat(folder, "/", file);
      if (!absl::EndsWith(name, ".safetensors") && !absl::EndsWith(name, ".segment")) continue;  // not whole yet
      ASSIGN_OR_RETURN(const int64_t bytes, SizeOf(absl::StrCat(directory_, "/", name)));
      feed->Grown(name, bytes);
    }
  }
  Log(log);
  return Removals();
}

void MirrorFeeds::End(const std::shared_ptr<MirrorFeed>& feed) {
  const core::MutexLock lock(mutex_);
  std::erase(feeds_, feed);
}

absl::Status MirrorFeeds::BeginHandOver(const std::shared_ptr<MirrorFeed>& to) {
  const MirrorFigures figures = to->figures();
  if (figures.sequence == 0 || figures.seconds_behind > kNearS || figures.bytes_behind > kNearBytes) {
    return absl::FailedPreconditionError(absl::StrCat("the standby lacks ", figures.records_behind, " records and ",
                                                      figures.bytes_behind,
                                                      " bytes: the run would stand until it has them. Try again then"));
  }
  const core::MutexLock lock(mutex_);
  if (!handed_to_.empty()) return absl::FailedPreconditionError("the run is handed over to " + handed_to_);
  handed_to_ = figures.address;
  for (const auto& feed : feeds_) {
    if (feed != to) feed->Stop();
  }
  return absl::OkStatus();
}

MirrorFeeds::List MirrorFeeds::all() const {
  const core::MutexLock lock(mutex_);
  return feeds_;
}

void MirrorFeeds::Know(std::vector<std::string> coordinators) {
  const core::MutexLock lock(mutex_);
  known_ = std::move(coordinators);
}

std::vector<std::string> MirrorFeeds::known() const {
  const core::MutexLock lock(mutex_);
  std::vector<std::string> known = known_;
  std::erase_if(known, [](const std::string& one) { return one.find(':') == std::string::npos; });
  return known;
}

int MirrorFeeds::PlaceOf(const std::string& address) const {
  const core::MutexLock lock(mutex_);
  return static_cast<int>(std::ranges::find(known_, address) - known_.begin());
}

absl::Status MirrorFeeds::CheckMayForget(const std::string& address) const {
  const std::vector<std::string> known = this->known();
  if (std::ranges::find(known, address) == known.end()) {
    return absl::FailedPreconditionError(absl::StrCat("the run knows no standby at ", address, "; it knows ",
                                                      known.empty() ? "none" : absl::StrJoin(known, ", ")));
  }
  for (const auto& feed : all()) {
    if (feed->figures().address != address) continue;
    return absl::FailedPreconditionError(absl::StrCat("the standby at ", address, " is connected: stop it first"));
  }
  return absl::OkStatus();
}

std::vector<std::string> MirrorFeeds::AwaitCopies(core::Clock::Duration time) const {
  std::vector<std::string> lacking = known();
  const core::Clock::TimePoint until = core::SystemClock().Now() + time;
  for (const auto& feed : all()) {
    if (feed->AwaitAcknowledged(until)) std::erase(lacking, feed->figures().address);
  }
  return lacking;
}

absl::Status MirrorFeeds::Snapshot(const std::string& name) const {
  const List feeds = all();
  if (feeds.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t bytes, SizeOf(absl::StrCat(directory_, "/", name)));
  for (const auto& feed : feeds) feed->Replaced(name, bytes);
  return absl::OkStatus();
}

void MirrorFeeds::Payload(const Extent& extent) const {
  if (extent.segment == 0) return;
  for (const auto& feed : all()) {
    feed->Grown(Segments::Path("segments", extent.segment), extent.offset + extent.bytes());
  }
}

void MirrorFeeds::Log(const LogFile& log) const {
  const std::string name = log.path().substr(directory_.size() + 1);
  for (const auto& feed : all()) feed->Grown(name, log.bytes(), log.end());
}

absl::Status MirrorFeeds::Removals() const {
  const List feeds = all();
  if (feeds.empty()) return absl::OkStatus();
  std::set<std::string> present;
  for (const char* folder : {"snapshots", "segments", "log"}) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, formats::NamesIn(absl::StrCat(directory_, "/", folder)));
    for (const std::string& name : names) present.insert(absl::StrCat(folder, "/", name));
  }
  for (const auto& feed : feeds) feed->Swept(present);
  return absl::OkStatus();
}

}  // namespace causeway::server
