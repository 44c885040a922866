#include "server/store/snapshots.h"

#include <cinttypes>
#include <cstdio>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/fault_point.h"
#include "formats/atomic_file.h"
#include "formats/posix_file.h"

namespace causeway::server {
namespace {

constexpr char kAnchorName[] = "anchor";
constexpr char kMomentumName[] = "momentum";
constexpr char kResidualName[] = "residual";

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

}  // namespace

std::string SnapshotFileName(core::FragmentId fragment, core::Version version) {
  return absl::StrFormat("fragment-%d-%06d.safetensors", fragment, version);
}

bool IsSnapshotFileName(const std::string& name) {
  int fragment = 0;
  int64_t version = 0;
  if (std::sscanf(name.c_str(), "fragment-%d-%" SCNd64, &fragment, &version) != 2) return false;
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, SnapshotFileName(fragment, version)) &&
         (rest.empty() || rest == ".new" || absl::EndsWith(rest, ".tmp"));
}

int64_t SnapshotBytes(const core::FragmentState& state) {
  constexpr int64_t kHeaderBytes = 1 << 10;
  const size_t values = state.anchor.size() + state.momentum.size() + state.residual.size();
  return static_cast<int64_t>(values * sizeof(float)) + kHeaderBytes;
}

absl::StatusOr<formats::FileDigest> WriteFragment(const std::string& path, const core::FragmentState& state,
                                                  const std::map<std::string, std::string>& metadata) {
  const auto size = static_cast<int64_t>(state.anchor.size());
  std::vector<formats::TensorData> tensors = {{kAnchorName, {size}, state.anchor},
                                              {kMomentumName, {size}, state.momentum}};
  if (!state.residual.empty()) tensors.push_back({kResidualName, {size}, state.residual});
  return formats::WriteSafetensors(path, tensors, metadata);
}

absl::StatusOr<core::FragmentState> ReadFragment(const std::string& path, core::Version version) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  core::FragmentState state;
  state.version = version;
  const auto read = [&](const char* name, core::AlignedFloats& values) -> absl::Status {
    const formats::SafetensorsFile::Entry* entry = file.Find(name);
    if (entry == nullptr) return Wrong(path, absl::StrCat("has no tensor ", name));
    if (entry->shape.size() != 1) return Wrong(path, absl::StrCat("tensor ", name, " is not one-dimensional"));
    values.resize(entry->shape[0]);
    return file.Read(name, values);
  };
  RETURN_IF_ERROR(read(kAnchorName, state.anchor));
  RETURN_IF_ERROR(read(kMomentumName, state.momentum));
  if (file.Find(kResidualName) != nullptr) RETURN_IF_ERROR(read(kResidualName, state.residual));
  if (state.momentum.size() != state.anchor.size() ||
      (!state.residual.empty() && state.residual.size() != state.anchor.size())) {
    return Wrong(path, "its tensors differ in size");
  }
  return state;
}

absl::StatusOr<uint64_t> WriteSnapshot(const std::string& path, core::FragmentId fragment,
                                       const core::FragmentState& state, uint64_t digest) {
  const std::string beside = path + ".new";
  ASSIGN_OR_RETURN(const formats::FileDigest written, WriteFragment(beside, state,
                                                                    {{"fragment", absl::StrCat(fragment)},
                                                                     {"version", absl::StrCat(state.version)},
                                                                     {"digest", core::DigestText(digest)}}));
  core::FaultPoint("mid_snapshot");
  if (std::rename(beside.c_str(), path.c_str()) != 0) return formats::FileError("replace", path);
  RETURN_IF_ERROR(formats::SyncFolderOf(path));
  return written.hash;
}

absl::StatusOr<core::FragmentState> ReadSnapshot(const std::string& path, core::Version version, uint64_t hash) {
  const absl::StatusOr<formats::FileDigest> got = formats::DigestOfFile(path);
  if (!got.ok()) return absl::DataLossError(got.status().message());
  if (got->hash != hash) {
    return Wrong(
        path, absl::StrCat("is damaged: expected hash ", core::DigestText(hash), ", got ", core::DigestText(got->hash),
                           "; restore the whole state directory from a backup, or move it away and start with "
                           "--rebuild_from_sites"));
  }
  return ReadFragment(path, version);
}

absl::StatusOr<SnapshotReader> SnapshotReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  return SnapshotReader(std::move(file));
}

absl::Status SnapshotReader::ReadAnchor(int64_t first, std::span<float> out) const {
  return file_.ReadPart(kAnchorName, first, out);
}

absl::Status SnapshotReader::ReadMomentum(int64_t first, std::span<float> out) const {
  return file_.ReadPart(kMomentumName, first, out);
}

}  // namespace causeway::server
