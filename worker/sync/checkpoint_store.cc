#include "worker/sync/checkpoint_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/aligned.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/safetensors.h"
#include "worker/sync/checkpoint_json.h"

namespace causeway::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kSyncJson[] = "/sync.json";
constexpr char kSyncArrays[] = "/sync.safetensors";
constexpr char kTrainer[] = "/trainer.safetensors";
constexpr int64_t kMaxJsonBytes = 64 << 20;  // more than the largest run's

std::string ChunksPath(const std::string& folder, size_t p) {
  return absl::StrCat(folder, "/contribution-", p, ".chunks");
}

// The numbers of the complete checkpoints, ascending.
std::vector<int64_t> Numbers(const std::string& directory) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string FolderOf(const std::string& directory, int64_t number) {
  return absl::StrCat(directory, "/", absl::StrFormat("%06d", number));
}

// Each chunk after its length in 8 bytes, little-endian.
absl::Status WriteChunks(const std::string& path, const std::vector<std::string>& chunks) {
  ASSIGN_OR_RETURN(formats::AtomicFile file, formats::AtomicFile::Create(path));
  for (const std::string& chunk : chunks) {
    const uint64_t size = chunk.size();
    RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(&size, 1))));
    RETURN_IF_ERROR(file.Append(chunk));
  }
  return file.Commit();
}

absl::StatusOr<std::vector<std::string>> ReadChunks(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  std::vector<std::string> chunks;
  for (int64_t at = 0; at < size;) {
    uint64_t bytes = 0;
    RETURN_IF_ERROR(formats::ReadAt(file, path, at, std::as_writable_bytes(std::span(&bytes, 1))));
    at += sizeof bytes;
    if (bytes > static_cast<uint64_t>(size - at)) return absl::DataLossError(absl::StrCat(path, ": ends in a chunk"));
    std::string& chunk = chunks.emplace_back(bytes, '\0');
    RETURN_IF_ERROR(formats::ReadAt(file, path, at, std::as_writable_bytes(std::span(chunk))));
    at += static_cast<int64_t>(bytes);
  }
  return chunks;
}

// The arrays of a fragment under their names in the file.
template <typename Arrays, typename Visit>
void VisitArrays(size_t p, Arrays& arrays, Visit visit) {
  visit(absl::StrCat(p, ".anchor"), arrays.anchor);
  visit(absl::StrCat(p, ".momentum"), arrays.momentum);
  visit(absl::StrCat(p, ".staging"), arrays.staging);
  visit(absl::StrCat(p, ".residual"), arrays.residual);
  visit(absl::StrCat(p, ".next_residual"), arrays.next_residual);
}

absl::Status WriteSync(const std::string& folder, const CheckpointIdentity& identity,
                       const SyncCheckpoint& checkpoint) {
  std::vector<formats::TensorData> tensors;
  for (size_t p = 0; p < checkpoint.fragments.size(); ++p) {
    const FragmentCheckpoint& fragment = checkpoint.fragments[p];
    VisitArrays(p, fragment.arrays, [&](const std::string& name, std::span<const float> values) {
      if (!values.empty()) tensors.push_back({name, {std::ssize(values)}, values});
    });
    if (fragment.sent && fragment.sent->chunks != nullptr) {
      RETURN_IF_ERROR(WriteChunks(ChunksPath(folder, p), *fragment.sent->chunks));
    }
  }
  RETURN_IF_ERROR(formats::WriteSafetensors(folder + kSyncArrays, tensors, {}));
  return formats::WriteFileAtomically(folder + kSyncJson, CheckpointToJson(identity, checkpoint));
}

absl::Status ReadArrays(const std::string& folder, SyncCheckpoint& checkpoint) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(folder + kSyncArrays));
  auto storage = std::make_shared<std::vector<core::AlignedFloats>>();
  absl::Status status;
  for (size_t p = 0; p < checkpoint.fragments.size(); ++p) {
    VisitArrays(p, checkpoint.fragments[p].arrays, [&](const std::string& name, std::span<const float>& values) {
      const formats::SafetensorsFile::Entry* entry = file.Find(name);
      if (entry == nullptr || entry->shape.size() != 1 || !status.ok()) return;  // a run without feedback
      core::AlignedFloats& stored = storage->emplace_back(entry->shape[0]);
      status = file.Read(name, stored);
      values = stored;
    });
  }
  checkpoint.storage = storage;
  return status;
}

absl::StatusOr<LoadedCheckpoint> ReadFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(folder + kSyncJson, kMaxJsonBytes));
  auto loaded = CheckpointFromJson(text);
  if (!loaded.ok()) return absl::DataLossError(absl::StrCat(folder, kSyncJson, " ", loaded.status().message()));
  RETURN_IF_ERROR(ReadArrays(folder, loaded->sync));
  for (size_t p = 0; p < loaded->sync.fragments.size(); ++p) {
    std::optional<UnresolvedContribution>& sent = loaded->sync.fragments[p].sent;
    if (!sent || sent->admitted) continue;
    ASSIGN_OR_RETURN(std::vector<std::string> chunks, ReadChunks(ChunksPath(folder, p)));
    sent->chunks = std::make_shared<const std::vector<std::string>>(std::move(chunks));
  }
  loaded->trainer_path = folder + kTrainer;
  return loaded;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  const std::string path = directory + "/lock";
  formats::FileDescriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.is_open()) {
    return absl::PermissionDeniedError(absl::StrCat("--checkpoint_dir: cannot write ", path, ": ", strerror(errno)));
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint_dir: another worker runs on ", directory, "; each needs its own"));
  }
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".tmp") fs::remove_all(entry.path(), error);  // of a save that was cut short
  }
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(directory, std::move(lock)));
}

absl::StatusOr<std::optional<LoadedCheckpoint>> CheckpointStore::Load(const core::RunId& run,
                                                                      const core::SiteId& site) const {
  const std::vector<int64_t> numbers = Numbers(directory_);
  if (numbers.empty()) return std::nullopt;
  absl::StatusOr<LoadedCheckpoint> newest = absl::NotFoundError("");
  for (size_t i = numbers.size(); i > 0 && !newest.ok(); --i) {
    auto read = ReadFolder(FolderOf(directory_, numbers[i - 1]));
    if (!read.ok()) spdlog::error("passes over a damaged checkpoint: {}", read.status().ToString());
    if (read.ok() || i == numbers.size()) newest = std::move(read);  // if all are, the newest is named
  }
  ASSIGN_OR_RETURN(LoadedCheckpoint loaded, std::move(newest));
  if (loaded.identity.run != run || loaded.identity.site != site) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_dir=", directory_, " holds checkpoints of site ",
                                                   loaded.identity.site, " in run ", loaded.identity.run,
                                                   "; this is site ", site, " in run ", run));
  }
  return loaded;
}

absl::Status CheckpointStore::Save(const CheckpointIdentity& identity, const SyncCheckpoint& checkpoint,
                                   const std::function<absl::Status(const std::string& path)>& save_trainer,
                                   int64_t keep) {
  std::vector<int64_t> numbers = Numbers(directory_);
  numbers.push_back(numbers.empty() ? 1 : numbers.back() + 1);
  const std::string folder = FolderOf(directory_, numbers.back());
  const std::string temporary = folder + ".tmp";
  std::error_code error;
  fs::create_directory(temporary, error);
  absl::Status status = error ? absl::PermissionDeniedError(absl::StrCat(temporary, ": ", error.message()))
                              : WriteSync(temporary, identity, checkpoint);
  if (status.ok()) status = save_trainer(temporary + kTrainer);
  if (status.ok()) {
    fs::rename(temporary, folder, error);
    status = error ? absl::PermissionDeniedError(absl::StrCat(folder, ": ", error.message()))
                   : formats::SyncFolderOf(folder);
  }
  if (!status.ok()) {
    fs::remove_all(temporary, error);
    return status;
  }
  for (size_t i = 0; i + keep < numbers.size(); ++i) fs::remove_all(FolderOf(directory_, numbers[i]), error);
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
