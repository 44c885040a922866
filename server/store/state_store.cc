#include "server/store/state_store.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/digest.h"
#include "formats/atomic_file.h"
#include "server/store/snapshots.h"
#include "server/store/state_json.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;

constexpr char kStateFile[] = "state.json";
constexpr char kHashesFile[] = "hashes.json";

// Far more than the state.json of the largest model that limits.h allows.
constexpr int64_t kMaxStateJsonBytes = int64_t{1} << 30;

std::string FragmentFile(size_t p) { return absl::StrCat("fragment-", p, ".safetensors"); }
std::string UpdateFile(size_t p, core::Version base) { return absl::StrCat("update-", p, "-", base, ".chunks"); }
std::string ContributionFile(size_t p, const core::SiteId& site) {
  return absl::StrCat("contribution-", p, "-", site, ".chunks");
}

// The numbers of the complete snapshots in the directory, ascending.
std::vector<int64_t> Snapshots(const std::string& directory) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string SnapshotName(int64_t number) { return absl::StrFormat("%06d", number); }

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

// A chunk file: each chunk after its length in 8 bytes, little-endian.
absl::Status WriteChunks(const std::string& path, const std::vector<ChunkPtr>& chunks) {
  ASSIGN_OR_RETURN(formats::AtomicFile file, formats::AtomicFile::Create(path));
  for (const ChunkPtr& chunk : chunks) {
    const uint64_t size = chunk->size();
    RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(&size, 1))));
    RETURN_IF_ERROR(file.Append(*chunk));
  }
  return file.Commit();
}

absl::StatusOr<std::vector<ChunkPtr>> ReadChunks(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  std::vector<ChunkPtr> chunks;
  int64_t at = 0;
  while (at < size) {
    uint64_t bytes = 0;
    if (size - at < static_cast<int64_t>(sizeof bytes)) return Wrong(path, "ends within a length");
    RETURN_IF_ERROR(formats::ReadAt(file, path, at, std::as_writable_bytes(std::span(&bytes, 1))));
    at += sizeof bytes;
    if (bytes > static_cast<uint64_t>(size - at)) return Wrong(path, "ends within a chunk");
    std::string chunk(bytes, '\0');
    RETURN_IF_ERROR(formats::ReadAt(file, path, at, std::as_writable_bytes(std::span(chunk))));
    at += static_cast<int64_t>(bytes);
    chunks.push_back(std::make_shared<const std::string>(std::move(chunk)));
  }
  return chunks;
}

absl::Status WriteHashes(const std::string& directory) {
  nlohmann::json hashes = nlohmann::json::object();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(entry.path()));
    hashes[entry.path().filename()] = core::DigestText(hash);
  }
  return formats::WriteFileAtomically(directory + "/" + kHashesFile, hashes.dump(1));
}

// Whether every file of the snapshot is as it was written. DATA_LOSS names the first one that is not.
absl::Status CheckHashes(const std::string& directory) {
  const std::string path = directory + "/" + kHashesFile;
  const auto text = formats::ReadFile(path, kMaxStateJsonBytes);
  if (!text.ok()) return absl::DataLossError(text.status().message());
  const nlohmann::json hashes = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!hashes.is_object() || !hashes.contains(kStateFile)) return Wrong(path, "is damaged");
  for (const auto& [name, expected] : hashes.items()) {
    const std::string file = directory + "/" + name;
    const auto hash = HashFile(file);
    if (!hash.ok()) return absl::DataLossError(hash.status().message());
    if (expected == core::DigestText(*hash)) continue;
    return Wrong(file, absl::StrCat("is damaged: expected hash ", expected.dump(), ", got ", core::DigestText(*hash)));
  }
  return absl::OkStatus();
}

absl::Status WriteSnapshot(const std::string& directory, const SavedState& state) {
  for (size_t p = 0; p < state.fragments.size(); ++p) {
    const SavedFragment& fragment = state.fragments[p];
    RETURN_IF_ERROR(WriteFragment(directory + "/" + FragmentFile(p), *fragment.state,
                                  {{"version", absl::StrCat(fragment.state->version)}}));
    for (const SavedUpdate& update : fragment.updates) {
      RETURN_IF_ERROR(WriteChunks(directory + "/" + UpdateFile(p, update.base), update.chunks));
    }
    for (const auto& [site, chunks] : fragment.contributions) {
      RETURN_IF_ERROR(WriteChunks(directory + "/" + ContributionFile(p, site), chunks));
    }
  }
  RETURN_IF_ERROR(formats::WriteFileAtomically(directory + "/" + kStateFile, StateToJson(state)));
  return WriteHashes(directory);
}

absl::StatusOr<SavedState> ReadSnapshot(const std::string& directory) {
  RETURN_IF_ERROR(CheckHashes(directory));
  const std::string state_path = directory + "/" + kStateFile;
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(state_path, kMaxStateJsonBytes));
  absl::StatusOr<SavedState> state = StateFromJson(text);
  if (!state.ok()) return Wrong(state_path, state.status().message());
  if (state->rounds.versions.size() < state->fragments.size()) return Wrong(state_path, "has fragments of no version");
  for (size_t p = 0; p < state->fragments.size(); ++p) {
    SavedFragment& fragment = state->fragments[p];
    // The rules count decided rounds, and a state is saved when all of them are merged.
    ASSIGN_OR_RETURN(core::FragmentState arrays,
                     ReadFragment(directory + "/" + FragmentFile(p), state->rounds.versions[p]));
    fragment.state = std::make_shared<const core::FragmentState>(std::move(arrays));
    for (SavedUpdate& update : fragment.updates) {
      ASSIGN_OR_RETURN(update.chunks, ReadChunks(directory + "/" + UpdateFile(p, update.base)));
    }
    for (auto& [site, chunks] : fragment.contributions) {
      ASSIGN_OR_RETURN(chunks, ReadChunks(directory + "/" + ContributionFile(p, site)));
    }
  }
  return state;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> StateStore::Open(const std::string& directory) {
  ASSIGN_OR_RETURN(std::unique_ptr<StateDirectory> state_directory, StateDirectory::Open(directory));
  std::unique_ptr<StateStore> store(new StateStore(std::move(state_directory)));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory + "/snapshots", error)) {
    if (entry.path().extension() == ".tmp") fs::remove_all(entry.path(), error);  // of a save that was cut short
  }
  return store;
}

absl::StatusOr<std::optional<SavedState>> StateStore::Load() const {
  const std::string snapshots = directory_->snapshots();
  const std::vector<int64_t> numbers = Snapshots(snapshots);
  if (numbers.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(SavedState state, ReadSnapshot(snapshots + "/" + SnapshotName(numbers.back())));
  return state;
}

absl::Status StateStore::Save(const SavedState& state, int64_t keep) {
  const std::string snapshots = directory_->snapshots();
  std::vector<int64_t> numbers = Snapshots(snapshots);
  numbers.push_back(numbers.empty() ? 1 : numbers.back() + 1);
  const std::string path = snapshots + "/" + SnapshotName(numbers.back());
  const std::string temporary = path + ".tmp";
  std::error_code error;
  fs::create_directory(temporary, error);
  absl::Status status = error ? absl::PermissionDeniedError(absl::StrCat(temporary, ": ", error.message()))
                              : WriteSnapshot(temporary, state);
  if (status.ok()) {
    fs::rename(temporary, path, error);
    if (error) status = absl::InternalError(absl::StrCat("cannot rename ", temporary, ": ", error.message()));
  }
  if (status.ok()) status = formats::SyncFolderOf(path);
  if (!status.ok()) {
    fs::remove_all(temporary, error);
    return status;
  }
  const size_t superfluous = numbers.size() - std::min<size_t>(numbers.size(), keep);
  for (size_t i = 0; i < superfluous; ++i) fs::remove_all(snapshots + "/" + SnapshotName(numbers[i]), error);
  return absl::OkStatus();
}

absl::Status StateStore::WriteAddresses(const std::string& grpc, const std::string& http) const {
  return directory_->WriteAddresses(grpc, http);
}

}  // namespace causeway::server
