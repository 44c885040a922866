// Files that appear whole or not at all.
//
//   run.json.tmp   ──write──►  fsync  ──rename──►  run.json   ──►  fsync of the folder
//                                                  a reader, or a crash at any instant, sees the old or the new
//                                                  contents
//
// The temporary file lies beside the target, because a rename is atomic only inside one file system, and has a fixed
// name (".tmp" appended), so that a leftover of a crash is overwritten by the next write instead of piling up. Its
// writer holds a lock on it; another writer of the same path takes ".2.tmp" meanwhile, and the last to finish decides.
// A symbolic link is followed, and stays one. Pipes and devices, such as /dev/null and /dev/stdout, cannot be replaced:
// they are written to directly. Errors name the path and the system's reason; the old file then stays as it was and the
// temporary one is removed. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/file_digest.h"
#include "formats/posix_file.h"

namespace causeway::formats {

// Makes creations and renames in the folder of `path` durable.
absl::Status SyncFolderOf(const std::string& path);

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);

// The same for contents that are too large to hold: Create, Append as often as needed, Commit once. Move-only.
class AtomicFile {
 public:
  // Waits for a reader where `path` is a pipe that none has opened.
  static absl::StatusOr<AtomicFile> Create(const std::string& path);

  AtomicFile(AtomicFile&&) = default;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // without Commit: removes the temporary file, the target stays as it was

  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Append(std::string_view text);

  FileDigest digest() const { return digest_.value(); }  // the digest of what was appended so far

  // Makes the contents durable under the target's name. Call it once, last, and only if every Append was OK.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, FileDescriptor file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}

  std::string path_;       // the path behind all symbolic links
  std::string temporary_;  // empty: the target itself is written to
  FileDescriptor file_;    // open from Create to Commit
  RunningDigest digest_;
};

// Files or folders that a folder holds one after the other: 000001.segment, 000002.segment … Thread-safe.
struct NumberedFiles {
  std::string folder;
  std::string extension;  // the extension with its dot; empty: none

  std::string Path(int64_t number) const;
  std::vector<int64_t> Numbers() const;  // the numbers of existing files, ascending; ignores names such as 0042
};

}  // namespace causeway::formats
