#include "tests/sim/disk.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/thread.h"

namespace causeway::sim {
namespace {

constexpr size_t kSectorBytes = 512;
constexpr int64_t kSlowSyncMs = 800;
constexpr int64_t kTailBytes = 1024;

std::map<std::string, Disk*>& Disks() {
  static auto* const disks = new std::map<std::string, Disk*>;
  return *disks;
}

}  // namespace

Disk::Disk(Machine* machine, std::string folder) : machine_(*machine), folder_(std::move(folder)) {
  std::filesystem::create_directories(path());
  Disks()[folder_ + "/"] = this;
}

Disk::~Disk() { Disks().erase(folder_ + "/"); }

std::string Disk::path() const { return absl::StrCat(folder_, "/", life_); }

Disk* Disk::Of(const std::string& path) {
  for (const auto& [folder, disk] : Disks()) {
    if (absl::StartsWith(path, folder)) return disk;
  }
  return nullptr;
}

std::string Disk::NameOf(const std::string& path) const {
  const std::string prefix = this->path() + "/";
  if (copying_) return "";
  return absl::StartsWith(path, prefix) ? path.substr(prefix.size()) : "";  // "": of a life that is over
}

Disk::File& Disk::At(const std::string& name) {
  std::shared_ptr<File>& file = files_[name];
  if (file == nullptr) file = std::make_shared<File>();
  return *file;
}

// ---- Faults ----

int Disk::Fault(int64_t one_in, int error) {
  if (one_in == 0 || machine_.current() == nullptr || !machine_.chance().OneIn(one_in)) return 0;
  ++faults_met_;
  machine_.Log(absl::StrCat("disk ", machine_.current()->name(), " fault ", error));
  return error;
}

int Disk::BeforeWrite() {
  if (const int error = Fault(faults.no_room, ENOSPC)) return error;
  return Fault(faults.write_error, EIO);
}

int Disk::BeforeSync() {
  if (faults.slow_sync != 0 && machine_.current() != nullptr && machine_.chance().OneIn(faults.slow_sync)) {
    ++faults_met_;
    core::SleepUntil(machine_.Now() + milliseconds(machine_.chance().Between(1, kSlowSyncMs)));
  }
  return Fault(faults.sync_error, EIO);
}

// ---- Accounts of calls ----

void Disk::Wrote(const std::string& path, int64_t offset, const void* bytes, size_t size) {
  const std::string name = NameOf(path);
  if (name.empty()) return;
  At(name).pending.push_back({.offset = offset, .bytes = std::string(static_cast<const char*>(bytes), size)});
}

void Disk::Truncated(const std::string& path, int64_t size) {
  const std::string name = NameOf(path);
  if (!name.empty()) At(name).pending.push_back({.offset = 0, .bytes = {}, .truncate = size});
}

void Disk::Apply(const Write& write, std::string& content) {
  if (write.truncate >= 0) {
    content.resize(static_cast<size_t>(write.truncate));
    return;
  }
  const size_t end = static_cast<size_t>(write.offset) + write.bytes.size();
  if (content.size() < end) content.resize(end);
  content.replace(static_cast<size_t>(write.offset), write.bytes.size(), write.bytes);
}

void Disk::File::Apply(const Write& write) {
  Disk::Apply(write, durable);
  if (sound) Disk::Apply(write, *sound);
  if (sound == durable) sound.reset();
}

void Disk::Synced(const std::string& path) {
  if (std::filesystem::is_directory(path)) return SyncedFolder(path);
  const std::string name = NameOf(path);
  if (name.empty()) return;
  File& file = At(name);
  for (const Write& write : file.pending) file.Apply(write);
  file.pending.clear();
}

// As journaling file systems do, the changes of all folders become durable in their order.
void Disk::SyncedFolder(const std::string& folder) {
  if (folder != path() && NameOf(folder).empty()) return;
  changes_.clear();
  durable_names_ = files_;
}

void Disk::Created(const std::string& path) {
  const std::string name = NameOf(path);
  if (name.empty()) return;
  files_[name] = std::make_shared<File>();
  changes_.push_back({Change::Kind::kCreate, name, "", files_[name]});
}

void Disk::Renamed(const std::string& from_path, const std::string& to_path) {
  const std::string from = NameOf(from_path), to = NameOf(to_path);
  if (from.empty() || to.empty()) return;
  // A folder takes its files along.
  std::map<std::string, std::shared_ptr<File>> moved;
  for (auto file = files_.begin(); file != files_.end();) {
    const bool inside = file->first == from || absl::StartsWith(file->first, from + "/");
    if (!inside) {
      ++file;
      continue;
    }
    moved[to + file->first.substr(from.size())] = file->second;
    file = files_.erase(file);
  }
  for (const auto& [name, file] : moved) files_[name] = file;
  changes_.push_back({Change::Kind::kRename, from, to, nullptr});
}

void Disk::Unlinked(const std::string& path) {
  const std::string name = NameOf(path);
  if (name.empty()) return;
  files_.erase(name);
  changes_.push_back({Change::Kind::kUnlink, name, "", nullptr});
}

// ---- Crashes ----

Disk::File Disk::Survives(const File& file) {
  File survivor{.durable = file.durable, .sound = file.sound, .promised = file.durable.size(), .pending = {}};
  Chance& chance = machine_.chance();
  const int64_t fate = chance.Below(3);  // all of what is pending, a prefix with a torn end, or any sectors
  const auto whole = fate == 0 ? file.pending.size()
                               : static_cast<size_t>(chance.Below(static_cast<int64_t>(file.pending.size()) + 1));
  for (size_t i = 0; i < file.pending.size(); ++i) {
    const Write& write = file.pending[i];
    if (i < whole) {
      survivor.Apply(write);
    } else if (write.truncate >= 0) {
      if (fate == 2 && chance.OneIn(2)) survivor.Apply(write);
    } else if (fate == 2 || i == whole) {
      size_t next = 0;
      for (size_t at = 0; at < write.bytes.size(); at = next) {
        const int64_t offset = write.offset + static_cast<int64_t>(at);
        next = at + kSectorBytes - static_cast<size_t>(offset) % kSectorBytes;  // where the disk's sector ends
        if (fate == 1 && chance.OneIn(2)) break;
        if (fate == 2 && chance.OneIn(2)) continue;
        survivor.Apply({.offset = offset, .bytes = write.bytes.substr(at, next - at)});
      }
    }
  }
  return survivor;
}

void Disk::Crash() {
  const auto kept = static_cast<size_t>(machine_.chance().Below(static_cast<int64_t>(changes_.size()) + 1));
  auto names = std::move(durable_names_);
  for (size_t i = 0; i < kept; ++i) {
    const Change& change = changes_[i];
    switch (change.kind) {
      case Change::Kind::kCreate: names[change.name] = change.file; break;
      case Change::Kind::kUnlink: names.erase(change.name); break;
      case Change::Kind::kRename: {
        std::map<std::string, std::shared_ptr<File>> moved;
        for (auto file = names.begin(); file != names.end();) {
          const bool inside = file->first == change.name || absl::StartsWith(file->first, change.name + "/");
          if (inside) moved[change.to + file->first.substr(change.name.size())] = file->second;
          file = inside ? names.erase(file) : std::next(file);
        }
        for (const auto& [name, file] : moved) names[name] = file;
        break;
      }
    }
  }
  ++life_;
  files_.clear();
  changes_.clear();
  durable_names_.clear();
  copying_ = true;
  std::filesystem::create_directories(path());
  std::map<const File*, std::shared_ptr<File>> survivors;  // two names of one file stay one
  for (const auto& [name, file] : names) {
    if (absl::EndsWith(name, "-shm")) continue;  // memory
    std::shared_ptr<File>& survivor = survivors[file.get()];
    if (survivor == nullptr) survivor = std::make_shared<File>(Survives(*file));
    files_[name] = survivor;
    std::filesystem::create_directories(std::filesystem::path(absl::StrCat(path(), "/", name)).parent_path());
    Replace(name, survivor->durable);
  }
  copying_ = false;
  durable_names_ = files_;
}

void Disk::Lose() {
  ++life_;
  files_.clear();
  durable_names_.clear();
  changes_.clear();
  std::filesystem::create_directories(path());
}

// ---- Damage ----

void Disk::Replace(const std::string& name, const std::string& content) const {
  std::ofstream(absl::StrCat(path(), "/", name), std::ios::binary | std::ios::trunc) << content;
}

// Half of it hits the end, where the newest of a log is.
std::string Disk::Damaged(std::string content, std::string* what) {
  Chance& chance = machine_.chance();
  const auto size = static_cast<int64_t>(content.size());
  const int64_t first = chance.OneIn(2) ? std::max<int64_t>(0, size - kTailBytes) : 0;
  const auto at = static_cast<size_t>(chance.Between(first, size - 1));
  const size_t sector = at / kSectorBytes * kSectorBytes,
               sector_bytes = std::min(kSectorBytes, content.size() - sector);
  if (damage.flipped_bit != 0 && chance.OneIn(damage.flipped_bit)) {
    *what = "flipped bit";
    content[at] = static_cast<char>(content[at] ^ (1 << chance.Below(8)));
  } else if (damage.truncated != 0 && chance.OneIn(damage.truncated)) {
    *what = "truncated";
    content.resize(at);
  } else if (damage.lost_write != 0 && chance.OneIn(damage.lost_write)) {
    *what = "lost write";
    content.replace(sector, sector_bytes, std::string(sector_bytes, '\0'));
  } else if (damage.misdirected_write != 0 && size > static_cast<int64_t>(kSectorBytes) &&
             chance.OneIn(damage.misdirected_write)) {
    *what = "misdirected write";
    const auto from = static_cast<size_t>(chance.Below(size / static_cast<int64_t>(kSectorBytes))) * kSectorBytes;
    content.replace(sector, sector_bytes, content.substr(from, sector_bytes));
  }
  return content;
}

void Disk::Damage() {
  if (damage.flipped_bit + damage.truncated + damage.lost_write + damage.misdirected_write == 0) return;
  std::map<std::string, std::vector<std::string>> by_folder;  // else the most numerous files would be hit alone
  for (const auto& [name, file] : files_) {
    if (!file->durable.empty()) by_folder[name.substr(0, name.find('/'))].push_back(name);
  }
  if (by_folder.empty()) return;
  Chance& chance = machine_.chance();
  auto folder = std::next(by_folder.begin(), chance.Below(std::ssize(by_folder)));
  if (!damage.mostly.empty() && chance.OneIn(2)) {
    for (auto each = by_folder.begin(); each != by_folder.end(); ++each) {
      if (absl::StartsWith(each->first, damage.mostly)) folder = each;
    }
  }
  const std::string& name = folder->second[static_cast<size_t>(chance.Below(std::ssize(folder->second)))];
  File& file = *files_.at(name);
  std::string what, content = Damaged(file.durable, &what);
  if (content == file.durable) return;
  // Only what was promised comes back: a start may have gone on without the rest, and taken its place.
  const auto [was, is] = std::ranges::mismatch(file.durable, content);
  const bool promised = was - file.durable.begin() < static_cast<int64_t>(file.promised);
  if (!file.sound) file.sound = promised ? file.durable : file.durable.substr(0, file.promised);
  file.durable = std::move(content);
  copying_ = true;
  Replace(name, file.durable);
  copying_ = false;
  ++files_damaged_;
  machine_.Log(absl::StrCat("damage ", what, " ", name));
}

bool Disk::Restore(const std::string& text) {
  bool restored = false;
  copying_ = true;
  for (const auto& [name, file] : files_) {
    const std::string file_path = absl::StrCat(path(), "/", name);
    const std::string of_folder = std::filesystem::path(file_path).parent_path().string() + ":";
    if (!file->sound || (!absl::StrContains(text, file_path) && !absl::StrContains(text, of_folder))) continue;
    file->durable = *std::exchange(file->sound, std::nullopt);
    std::string content = file->durable;
    for (const Write& write : file->pending) Apply(write, content);
    Replace(name, content);
    machine_.Log(absl::StrCat("restore ", name));
    restored = true;
  }
  copying_ = false;
  return restored;
}

Disk::Contents Disk::promised() const {
  Contents contents;
  for (const auto& [name, file] : durable_names_) contents[name] = file->sound.value_or(file->durable);
  return contents;
}

Disk::Contents Disk::synced() const {
  Contents contents;
  for (const auto& [name, file] : durable_names_) contents[name] = file->durable;
  return contents;
}

}  // namespace causeway::sim
