// Snapshots of a fragment: safetensors files that anyone can load in Python.
//
//   fragment-3-000017.safetensors    tensors anchor (W), momentum (v), residual (ē, where there is one)
//                                    metadata fragment, version, digest
//
// Stateless; thread-safe on different files.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fragment_state.h"
#include "formats/file_digest.h"
#include "formats/safetensors.h"

namespace causeway::server {

std::string SnapshotFileName(core::FragmentId fragment, core::Version version);
bool IsSnapshotFileName(const std::string& name);  // also of one that is being written

// A lower bound on the size of the file.
int64_t SnapshotBytes(const core::FragmentState& state);

// Writes a temporary file and renames it; durable when it returns OK. Returns the hash of its bytes.
absl::StatusOr<uint64_t> WriteSnapshot(const std::string& path, core::FragmentId fragment,
                                       const core::FragmentState& state, uint64_t digest);

// DATA_LOSS names the file: it is missing, differs from what was written, or has another shape.
absl::StatusOr<core::FragmentState> ReadSnapshot(const std::string& path, core::Version version, uint64_t hash);

// A snapshot that is read in parts, concurrently by many threads. Reading continues even if the file is unlinked
// meanwhile.
class SnapshotReader {
 public:
  static absl::StatusOr<SnapshotReader> Open(const std::string& path);

  // Reads values from the `first`-th of the padded layout on.
  absl::Status ReadAnchor(int64_t first, std::span<float> out) const;
  absl::Status ReadMomentum(int64_t first, std::span<float> out) const;

 private:
  explicit SnapshotReader(formats::SafetensorsFile file) : file_(std::move(file)) {}

  formats::SafetensorsFile file_;
};

// ---- The basis of the above ----

absl::StatusOr<formats::FileDigest> WriteFragment(const std::string& path, const core::FragmentState& state,
                                                  const std::map<std::string, std::string>& metadata);
absl::StatusOr<core::FragmentState> ReadFragment(const std::string& path, core::Version version);

}  // namespace causeway::server
