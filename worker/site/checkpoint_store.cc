#include "worker/site/checkpoint_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/aligned.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/numbered_files.h"
#include "formats/safetensors.h"
#include "worker/site/checkpoint_json.h"
#include "worker/site/chunk_framing.h"

namespace causeway::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kSyncJson[] = "sync.json";
constexpr char kSyncArrays[] = "sync.safetensors";
constexpr char kTrainer[] = "trainer.safetensors";
constexpr int64_t kMaxJsonBytes = 64 << 20;  // larger than that of the largest run

std::string ChunksName(size_t p) { return absl::StrCat("contribution-", p, ".chunks"); }

std::string In(const std::string& folder, const std::string& name) { return absl::StrCat(folder, "/", name); }

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
absl::Status WriteFolder(const std::string& folder, const CheckpointIdentity& identity,
                         const SiteCheckpoint& checkpoint, const CheckpointStore::SaveTrainer& save_trainer) {
  std::map<std::string, formats::FileDigest> files;
  std::vector<formats::TensorData> tensors;
  for (size_t p = 0; p < checkpoint.arrays.size(); ++p) {
    VisitArrays(p, checkpoint.arrays[p], [&](const std::string& name, std::span<const float> values) {
      if (!values.empty()) tensors.push_back({name, {std::ssize(values)}, values});
    });
    if (checkpoint.chunks[p] == nullptr) continue;
    ASSIGN_OR_RETURN(files[ChunksName(p)], SaveChunks(In(folder, ChunksName(p)), *checkpoint.chunks[p]));
  }
  ASSIGN_OR_RETURN(files[kSyncArrays], formats::WriteSafetensors(In(folder, kSyncArrays), tensors, {}));
  ASSIGN_OR_RETURN(files[kTrainer], save_trainer(In(folder, kTrainer)));
  return formats::WriteFileAtomically(In(folder, kSyncJson), CheckpointToJson(identity, checkpoint, &files));
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
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(In(folder, kSyncArrays)));
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

absl::StatusOr<LoadedCheckpoint> ReadFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(In(folder, kSyncJson), kMaxJsonBytes));
  auto loaded = CheckpointFromJson(text);
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(), absl::StrCat(In(folder, kSyncJson), " ", loaded.status().message()));
  }
  if (loaded->files.empty()) return absl::DataLossError(absl::StrCat(In(folder, kSyncJson), " names no files"));
  for (const auto& [name, digest] : loaded->files) RETURN_IF_ERROR(formats::CheckFile(In(folder, name), digest));
  RETURN_IF_ERROR(ReadArrays(folder, *loaded));
  for (size_t p = 0; p < loaded->site.chunks.size(); ++p) {
    const std::optional<SentFacts>& sent = loaded->site.facts.fragments[p].sent;
    if (!sent || sent->admitted) continue;
    ASSIGN_OR_RETURN(loaded->site.chunks[p], LoadChunks(In(folder, ChunksName(p))));
  }
  loaded->trainer_path = In(folder, kTrainer);
  return loaded;
}

// Excludes missing permission, and temporary errors.
bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status);
}

}  // namespace

absl::StatusOr<formats::FileDescriptor> CheckpointStore::Lock(const std::string& directory) {
  const absl::Status made = formats::MakePrivateFolder(directory);
  if (!made.ok()) return absl::PermissionDeniedError(absl::StrCat("--checkpoint_dir: ", std::string(made.message())));
  const std::string path = directory + "/lock";
  formats::FileDescriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.is_open()) {
    return absl::PermissionDeniedError(absl::StrCat("--checkpoint_dir: cannot write ", path, ": ", strerror(errno)));
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint_dir: another worker runs on ", directory, "; each needs its own"));
  }
  return lock;
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& directory) {
  ASSIGN_OR_RETURN(formats::FileDescriptor lock, Lock(directory));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".tmp") fs::remove_all(entry.path(), error);  // from an interrupted save
  }
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(directory, std::move(lock)));
}

absl::StatusOr<std::optional<LoadedCheckpoint>> CheckpointStore::Load(const core::RunId& run,
                                                                      const core::SiteId& site) {
  const std::vector<int64_t> numbers = FoldersIn(directory_).Numbers();
  if (numbers.empty()) return std::nullopt;
  absl::StatusOr<LoadedCheckpoint> newest = absl::NotFoundError("");
  absl::Status unreadable;  // the newest that is not damaged, or not known to be
  for (size_t i = numbers.size(); i > 0 && !newest.ok(); --i) {
    newest = ReadFolder(FoldersIn(directory_).Path(numbers[i - 1]));
    if (newest.ok()) break;
    damage_.emplace_back(newest.status().message());
    spdlog::error("passes over a checkpoint: {}", damage_.back());
    if (!IsDamage(newest.status())) unreadable.Update(newest.status());
  }
  RETURN_IF_ERROR(newest.ok() ? absl::OkStatus() : unreadable);
  if (!newest.ok()) return SetAside(numbers);
  LoadedCheckpoint& loaded = *newest;
  if (loaded.identity.run != run || loaded.identity.site != site) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_dir=", directory_, " holds checkpoints of site ",
                                                   loaded.identity.site, " in run ", loaded.identity.run,
                                                   "; this is site ", site, " in run ", run));
  }
  return *std::move(newest);
}

// The site joins anew; the damaged checkpoints stay for people to examine.
absl::StatusOr<std::optional<LoadedCheckpoint>> CheckpointStore::SetAside(const std::vector<int64_t>& numbers) const {
  for (const int64_t number : numbers) {
    const std::string folder = FoldersIn(directory_).Path(number);
    std::string aside = folder + ".damaged";
    for (int i = 2; fs::exists(aside); ++i) aside = absl::StrCat(folder, ".damaged-", i);
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

absl::Status CheckpointStore::Save(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint,
                                   const SaveTrainer& save_trainer, int64_t keep) {
  RETURN_IF_ERROR(MakeAgainIfGone(identity));
  std::vector<int64_t> numbers = FoldersIn(directory_).Numbers();
  numbers.push_back(numbers.empty() ? 1 : numbers.back() + 1);
  const std::string folder = FoldersIn(directory_).Path(numbers.back());
  const std::string temporary = folder + ".tmp";
  std::error_code error;
  fs::create_directory(temporary, error);
  absl::Status status = error ? absl::PermissionDeniedError(absl::StrCat(temporary, ": ", error.message()))
                              : WriteFolder(temporary, identity, checkpoint, save_trainer);
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
