#include "worker/site/checkpoint_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/aligned.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/safetensors.h"
#include "worker/site/checkpoint_json.h"
#include "worker/site/site_transfers.h"

namespace causeway::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kSyncJson[] = "sync.json";
constexpr char kSyncArrays[] = "sync.safetensors";
constexpr char kTrainer[] = "trainer.safetensors";
constexpr int64_t kMaxJsonBytes = 64 << 20;  // more than the largest run needs for sync.json

std::string ChunksName(size_t p) { return absl::StrCat("contribution-", p, ".chunks"); }

std::string PathIn(const std::string& folder, const std::string& name) { return absl::StrCat(folder, "/", name); }

// The complete checkpoints.
formats::NumberedFiles FoldersIn(const std::string& directory) { return {directory, /*extension=*/""}; }

absl::StatusOr<formats::FileDigest> SaveChunks(const std::string& path, const std::vector<core::Bytes>& chunks) {
  ASSIGN_OR_RETURN(formats::AtomicFile file, formats::AtomicFile::Create(path));
  RETURN_IF_ERROR(WriteChunks(chunks, [&](std::span<const std::byte> bytes) { return file.Append(bytes); }));
  RETURN_IF_ERROR(file.Commit());
  return file.digest();
}

absl::StatusOr<Chunks> LoadChunks(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  return ReadChunks(path, size,
                    [&](int64_t at, std::span<std::byte> bytes) { return formats::ReadAt(file, path, at, bytes); });
}

// sync.json comes last: it names and describes the others.
absl::Status WriteFolder(const std::string& folder, int64_t number, const CheckpointIdentity& identity,
                         const SiteCheckpoint& checkpoint, const CheckpointStore::SaveTrainer& save_trainer) {
  std::map<std::string, formats::FileDigest> files;
  std::vector<formats::TensorData> tensors;
  for (size_t p = 0; p < checkpoint.arrays.size(); ++p) {
    VisitArrays(p, checkpoint.arrays[p], [&](const std::string& name, std::span<const float> values) {
      if (!values.empty()) tensors.push_back({name, {std::ssize(values)}, values});
    });
    if (checkpoint.chunks[p] == nullptr) continue;
    ASSIGN_OR_RETURN(files[ChunksName(p)], SaveChunks(PathIn(folder, ChunksName(p)), *checkpoint.chunks[p]));
  }
  ASSIGN_OR_RETURN(files[kSyncArrays], formats::WriteSafetensors(PathIn(folder, kSyncArrays), tensors, {}));
  ASSIGN_OR_RETURN(files[kTrainer], save_trainer(PathIn(folder, kTrainer)));
  return formats::WriteFileAtomically(PathIn(folder, kSyncJson),
                                      CheckpointToJson(identity, checkpoint, number, &files));
}

using Storage = std::vector<core::AlignedFloats>;

// Sets `values` to those of that name; does nothing if the file has none.
absl::Status ReadArray(const formats::SafetensorsFile& file, const std::string& name, Storage& storage,
                       std::span<const float>& values) {
  const formats::SafetensorsFile::Entry* entry = file.Find(name);
  if (entry == nullptr || entry->shape.size() != 1) return absl::OkStatus();
  core::AlignedFloats& stored = storage.emplace_back(entry->shape[0]);
  values = stored;
  return file.Read(name, stored);
}

absl::Status ReadArrays(const std::string& folder, LoadedCheckpoint& loaded) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(PathIn(folder, kSyncArrays)));
  auto storage = std::make_shared<Storage>();
  absl::Status status;
  for (size_t p = 0; p < loaded.site.arrays.size(); ++p) {
    replica::ReplicaArrays& arrays = loaded.site.arrays[p];
    VisitArrays(p, arrays, [&](const std::string& name, std::span<const float>& values) {
      if (status.ok()) status = ReadArray(file, name, *storage, values);
    });
    RETURN_IF_ERROR(status);
    const FragmentFacts& facts = loaded.site.facts.fragments[p];
    if (facts.applied == facts.version || facts.merged || !arrays.step.empty()) continue;
    return absl::DataLossError(absl::StrCat("fragment ", p, ": expected the step that θ is yet to move by, got none"));
  }
  loaded.site.storage = storage;
  return absl::OkStatus();
}

absl::StatusOr<LoadedCheckpoint> ReadSync(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(PathIn(folder, kSyncJson), kMaxJsonBytes));
  auto loaded = CheckpointFromJson(text);
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(),
                        absl::StrCat(PathIn(folder, kSyncJson), " ", loaded.status().message()));
  }
  if (loaded->files.empty()) return absl::DataLossError(absl::StrCat(PathIn(folder, kSyncJson), " names no files"));
  return loaded;
}

absl::Status ReadFiles(const std::string& folder, LoadedCheckpoint& loaded) {
  for (const auto& [name, digest] : loaded.files) RETURN_IF_ERROR(formats::CheckFile(PathIn(folder, name), digest));
  RETURN_IF_ERROR(ReadArrays(folder, loaded));
  for (size_t p = 0; p < loaded.site.chunks.size(); ++p) {
    const std::optional<SentFacts>& sent = loaded.site.facts.fragments[p].sent;
    if (!sent || sent->admitted) continue;
    ASSIGN_OR_RETURN(loaded.site.chunks[p], LoadChunks(PathIn(folder, ChunksName(p))));
  }
  loaded.trainer_path = PathIn(folder, kTrainer);
  return absl::OkStatus();
}

// With nothing but files of a checkpoint, whole or not.
bool HasFilesOfOne(const std::string& folder, bool or_none = false) {
  const auto names = formats::NamesIn(folder);
  const bool all =
      names.ok() && std::ranges::all_of(*names, [](const std::string& name) {
        return name.starts_with("sync.") || name.starts_with("trainer.") || name.starts_with("contribution-");
      });
  return all && (or_none || !names->empty());
}

// Excludes missing permission, and temporary errors.
bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status);
}

}  // namespace

absl::StatusOr<formats::FileDescriptor> CheckpointStore::Lock(const std::string& directory) {
  const absl::Status made = formats::MakePrivateFolder(directory);
  if (!made.ok()) return absl::PermissionDeniedError(absl::StrCat("--checkpoint_dir: ", std::string(made.message())));
  return formats::LockFolder("--checkpoint_dir", directory, "worker");
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& directory) {
  ASSIGN_OR_RETURN(formats::FileDescriptor lock, Lock(directory));
  const formats::NumberedFiles interrupted{directory, ".tmp"};
  for (const int64_t number : interrupted.Numbers()) {
    std::error_code error;
    if (HasFilesOfOne(interrupted.Path(number), /*or_none=*/true)) fs::remove_all(interrupted.Path(number), error);
  }
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(directory, std::move(lock)));
}

absl::StatusOr<std::optional<LoadedCheckpoint>> CheckpointStore::Load(const core::RunId& run,
                                                                      const core::SiteId& site) {
  struct Found {
    std::string folder;
    bool copy = false;
    absl::StatusOr<LoadedCheckpoint> sync;
  };
  std::vector<Found> found;
  std::optional<CheckpointIdentity> foreign;
  for (const int64_t number : FoldersIn(directory_).Numbers()) {
    const std::string folder = FoldersIn(directory_).Path(number);
    std::error_code error;
    if (!fs::exists(PathIn(folder, kSyncJson), error) && !error && !HasFilesOfOne(folder)) continue;
    Found one{.folder = folder, .sync = ReadSync(folder)};
    if (one.sync.ok() && (one.sync->identity.run != run || one.sync->identity.site != site)) {
      foreign = one.sync->identity;
      continue;
    }
    one.copy = one.sync.ok() && one.sync->number != 0 && one.sync->number != number;
    found.push_back(std::move(one));
  }
  // The newest is the last; copies come where nothing else is whole.
  std::ranges::stable_sort(found, [](const Found& a, const Found& b) {
    if (a.copy != b.copy) return a.copy;
    return a.copy && a.sync->number < b.sync->number;
  });
  absl::Status unreadable;  // the newest that is not damaged, or not known to be
  std::vector<std::string> damaged;
  for (auto one = found.rbegin(); one != found.rend(); ++one) {
    if (one->copy) RETURN_IF_ERROR(unreadable);
    absl::Status status = one->sync.ok() ? ReadFiles(one->folder, *one->sync) : one->sync.status();
    if (status.ok() && one->copy)
      spdlog::warn("goes on from {}, a copy of checkpoint {}", one->folder, one->sync->number);
    if (status.ok()) return *std::move(one->sync);
    damage_.emplace_back(status.message());
    spdlog::error("passes over a checkpoint: {}", damage_.back());
    if (!IsDamage(status)) unreadable.Update(status);
    if (!one->copy) damaged.push_back(one->folder);
  }
  RETURN_IF_ERROR(unreadable);
  if (damaged.empty() && foreign) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_dir=", directory_, " holds checkpoints of site ",
                                                   foreign->site, " in run ", foreign->run, "; this is site ", site,
                                                   " in run ", run));
  }
  return SetAside(damaged);
}

// The site joins anew; the damaged checkpoints stay for people to examine.
absl::StatusOr<std::optional<LoadedCheckpoint>> CheckpointStore::SetAside(
    const std::vector<std::string>& folders) const {
  for (const std::string& folder : folders) {
    std::string aside = folder + ".damaged";
    for (int i = 2; formats::Exists(aside); ++i) aside = absl::StrCat(folder, ".damaged-", i);
    std::error_code error;
    fs::rename(folder, aside, error);
    if (error) return absl::PermissionDeniedError(absl::StrCat("cannot rename ", folder, ": ", error.message()));
    spdlog::error("no checkpoint is whole: {} is kept, and the site joins as one without", aside);
  }
  return std::nullopt;
}

absl::Status CheckpointStore::MakeAgainIfGone(const CheckpointIdentity& identity) {
  std::error_code error;
  if (fs::exists(directory_, error) || error) return absl::OkStatus();
  spdlog::warn("--checkpoint_dir: {} is gone, and the checkpoints in it; it is made again", directory_);
  ASSIGN_OR_RETURN(lock_, Lock(directory_));
  return SaveSession(identity);
}

std::vector<int64_t> CheckpointStore::OwnNumbers(const CheckpointIdentity& identity) const {
  std::vector<int64_t> numbers = FoldersIn(directory_).Numbers();
  std::erase_if(numbers, [&](int64_t number) {
    const auto sync = ReadSync(FoldersIn(directory_).Path(number));
    return !sync.ok() || sync->identity.run != identity.run || sync->identity.site != identity.site ||
           (sync->number != 0 && sync->number != number);
  });
  return numbers;
}

absl::Status CheckpointStore::Save(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint,
                                   const SaveTrainer& save_trainer, int64_t keep) {
  RETURN_IF_ERROR(MakeAgainIfGone(identity));
  std::vector<int64_t> numbers = OwnNumbers(identity);
  const std::vector<int64_t> taken = FoldersIn(directory_).Numbers();
  int64_t number = numbers.empty() ? 1 : numbers.back() + 1;
  std::error_code error;
  while (std::ranges::binary_search(taken, number) || fs::exists(FoldersIn(directory_).Path(number) + ".tmp", error)) {
    ++number;
  }
  numbers.push_back(number);
  const std::string folder = FoldersIn(directory_).Path(number);
  const std::string temporary = folder + ".tmp";
  fs::create_directory(temporary, error);
  absl::Status status = error ? absl::PermissionDeniedError(absl::StrCat(temporary, ": ", error.message()))
                              : WriteFolder(temporary, number, identity, checkpoint, save_trainer);
  if (status.ok()) {
    fs::rename(temporary, folder, error);
    status = error ? absl::PermissionDeniedError(absl::StrCat(folder, ": ", error.message()))
                   : formats::SyncFolderOf(folder);
  }
  if (!status.ok()) {
    fs::remove_all(temporary, error);
    return status;
  }
  for (size_t i = 0; i + keep < numbers.size(); ++i) fs::remove_all(FoldersIn(directory_).Path(numbers[i]), error);
  return absl::OkStatus();
}

absl::Status CheckpointStore::SaveSession(const CheckpointIdentity& identity) {
  return formats::WriteFileAtomically(directory_ + "/session.json", IdentityToJson(identity));
}

core::SessionId CheckpointStore::LoadSession(const core::RunId& run, const core::SiteId& site) const {
  const auto text = formats::ReadFile(directory_ + "/session.json", kMaxJsonBytes);
  if (!text.ok()) return "";
  const auto identity = IdentityFromJson(*text);
  return identity.ok() && identity->run == run && identity->site == site ? identity->session : "";
}

}  // namespace causeway::worker
