#include "tests/sim/log_promise.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/digest.h"

namespace causeway::sim {
namespace {

constexpr size_t kHeaderBytes = 64, kHashBytes = 32, kFrameBytes = 64, kSlotBytes = 4096, kMarkBytes = 48;

template <typename Number>
Number NumberAt(std::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

bool IsLog(const std::string& name) { return absl::StartsWith(name, "log/") && absl::EndsWith(name, ".log"); }

}  // namespace

// Whole ones, from the first on.
std::vector<LogPromise::Record> LogPromise::RecordsOf(std::string_view file) {
  std::vector<Record> records;
  while (file.size() >= kHeaderBytes + kHashBytes && file.starts_with("CWLR")) {
    const auto bytes = NumberAt<uint64_t>(file, 24);
    if (bytes > file.size() - kHeaderBytes - kHashBytes) break;
    const size_t size = kHeaderBytes + bytes;
    std::string hash(kHashBytes, '\0');
    SHA256(reinterpret_cast<const unsigned char*>(file.data()), size, reinterpret_cast<unsigned char*>(hash.data()));
    if (file.substr(size, kHashBytes) != hash) break;
    records.push_back({.kind = NumberAt<uint32_t>(file, 4),
                       .sequence = NumberAt<uint64_t>(file, 8),
                       .previous = std::string(file.substr(32, kHashBytes)),
                       .hash = std::move(hash)});
    file.remove_prefix(size + kHashBytes);
  }
  return records;
}

uint64_t LogPromise::LastMark(const Disk::Contents& files) {
  uint64_t last = 0;
  const auto marks = files.find("high_water");
  for (const size_t at : {size_t{0}, kSlotBytes}) {
    if (marks == files.end() || marks->second.size() < at + kMarkBytes) continue;
    const std::string_view slot = std::string_view(marks->second).substr(at, kMarkBytes);
    if (NumberAt<uint64_t>(slot, 40) == core::Xxh3(slot.data(), 40)) last = std::max(last, NumberAt<uint64_t>(slot, 0));
  }
  return last;
}

uint64_t LogPromise::LastFrame(const Disk::Contents& files) {
  uint64_t last = 0;
  for (const auto& [name, content] : files) {
    if (!absl::StartsWith(name, "segments/")) continue;
    for (std::string_view rest = content; rest.size() >= kFrameBytes && rest.starts_with("CWSG");) {
      if (NumberAt<uint64_t>(rest, 56) != core::Xxh3(rest.data(), 56)) break;
      last = std::max(last, NumberAt<uint64_t>(rest, 24));
      rest.remove_prefix(std::min<size_t>(rest.size(), kFrameBytes + NumberAt<uint64_t>(rest, 8)));
    }
  }
  return last;
}

void LogPromise::Ended(const Disk::Contents& promised) {
  acknowledged_.clear();
  for (const auto& [name, content] : promised) {  // the last one that has records is the newest
    if (!IsLog(name)) continue;
    std::vector<Record> records = RecordsOf(content);
    if (records.empty()) continue;
    name_ = name;
    file_ = content;
    acknowledged_ = std::move(records);
  }
}

bool LogPromise::LostWithoutATrace(const Disk::Contents& found) const {
  const auto file = found.find(name_);
  if (acknowledged_.empty() || file == found.end()) return false;
  const std::vector<Record> there = RecordsOf(file->second);
  const auto lost = acknowledged_.begin() + static_cast<int64_t>(std::min(there.size(), acknowledged_.size()));
  const auto first = std::find_if(lost, acknowledged_.end(), [](const Record& record) { return !record.repeats(); });
  if (first == acknowledged_.end()) return false;
  if (first->sequence <= std::max(LastMark(found), LastFrame(found))) return false;
  if (file->second.size() < file_.size()) return true;
  const auto [was, is] = std::ranges::mismatch(file_, file->second);
  const auto [last_was, last_is] = std::mismatch(file_.rbegin(), file_.rend(), file->second.rbegin());
  const bool zeros = std::all_of(is, last_is.base(), [](char byte) { return byte == 0; });
  return zeros && std::next(lost) == acknowledged_.end();
}

// Or a later file has all rows.
bool LogPromise::IsWhole(const Disk::Contents& found) const {
  return std::ranges::any_of(found, [&](const auto& file) {
    if (!IsLog(file.first) || file.first < name_) return false;
    const size_t records = RecordsOf(file.second).size();
    return file.first == name_ ? records >= acknowledged_.size() : records > 0;
  });
}

std::string LogPromise::Started(const Disk::Contents& found, const Disk::Contents& synced, bool said) const {
  const auto after = std::find_if(synced.rbegin(), synced.rend(), [](const auto& file) { return IsLog(file.first); });
  const std::vector<Record> own = after == synced.rend() ? std::vector<Record>() : RecordsOf(after->second);
  if (own.empty() || !own.front().repeats()) return "a start has no log of its own";
  if (acknowledged_.empty()) return "";
  const Record& last = acknowledged_.back();
  const uint64_t end = own.front().sequence - 1;
  if (end == last.sequence && own.front().previous != last.hash) {
    return absl::StrCat("a start goes on from another record ", end, " than was acknowledged");
  }
  const bool rolled_back = std::ranges::any_of(
      acknowledged_, [&](const Record& record) { return record.sequence > end && !record.repeats(); });
  if (!rolled_back && !said && !IsWhole(found)) return absl::StrCat(name_, " was made good without a word");
  if (!rolled_back) return "";
  return absl::StrCat("rolled back in silence: the log was acknowledged up to record ", last.sequence,
                      ", and a start goes on from record ", end);
}

}  // namespace causeway::sim
