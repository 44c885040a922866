// A small file that a person names by a flag: a certificate, a key, tokens. A regular file alone, of bounded size; read
// once, or again whenever it has changed.
//
//   path ──► ReadNamedFile ──► text, or what is wrong with it, by flag and path
//              └► NoteNamedFile: at run time what was read before stays in use ──► NamedFileFaults ──► alarm
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway::formats {

// All of it, at most core::kMaxCredentialFileBytes. INVALID_ARGUMENT: "--FLAG=PATH: expected a regular file, got a
// folder", and the like. Thread-safe.
absl::StatusOr<std::string> ReadNamedFile(const std::string& flag, const std::string& path);

// A program that runs on without the file's new contents says so, until they can be taken: OK. Returns whether that is
// news. Both thread-safe; the faults are those of the process, in order of `file`, one text each.
bool NoteNamedFile(const std::string& file, const absl::Status& status);
std::vector<std::string> NamedFileFaults();

// One that is reread whenever it has changed. Not thread-safe.
class WatchedFile {
 public:
  WatchedFile() = default;  // no file
  WatchedFile(std::string flag, std::string path) : flag_(std::move(flag)), path_(std::move(path)) {}

  bool given() const { return !path_.empty(); }
  std::string Text() const { return "--" + flag_ + "=" + path_; }

  // Its contents, if they may differ from those last read. A read error is returned once per change: INVALID_ARGUMENT.
  absl::StatusOr<std::optional<std::string>> ReadIfChanged();

 private:
  // From stat; the file has changed if this differs.
  struct Stamp {
    int64_t modified_ns = 0;
    int64_t bytes = -1;
    uint64_t inode = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };

  std::string flag_, path_;
  std::optional<Stamp> stamp_;  // none: not read yet
};

}  // namespace causeway::formats
