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
#include "core/clock.h"

namespace causeway::formats {

// A text file that a person brings: a schedule, costs, a config. Windows' byte order mark is taken off, and a file of
// another kind is refused by its name: a reader of YAML or JSON would only say that the first character is wrong.

// All of it, at most `max_bytes`. INVALID_ARGUMENT: "PATH: expected text, got a web page (HTML): …".
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

// All of it, at most core::kMaxCredentialFileBytes. INVALID_ARGUMENT: "--FLAG=PATH: expected a regular file, got a
// folder", and the like. Thread-safe.
absl::StatusOr<std::string> ReadNamedFile(const std::string& flag, const std::string& path);

// Notes that the program runs on without the file's new contents, or, with OK, that it could take them. Returns whether
// that is news. Both thread-safe; the faults are those of the process, in order of `file`, one text each.
bool NoteNamedFile(const std::string& file, const absl::Status& status);
std::vector<std::string> NamedFileFaults();

// A file that is reread whenever it has changed. A file that cannot be read is tried again at each look, since what was
// wrong may be mended without a trace (chmod). A file that was made shorter in its place may be half written: it counts
// once it has stayed so for kSettlesMs; a file that takes its place by a rename is whole. Not thread-safe.
class WatchedFile {
 public:
  static constexpr int64_t kSettlesMs = 5'000;

  WatchedFile() = default;  // watches no file
  WatchedFile(std::string flag, std::string path, const core::Clock* clock = &core::SystemClock())
      : flag_(std::move(flag)), path_(std::move(path)), clock_(clock) {}

  bool given() const { return !path_.empty(); }
  std::string Text() const { return "--" + flag_ + "=" + path_; }

  // The file's contents, if they may differ from those last read. INVALID_ARGUMENT: it cannot be read.
  absl::StatusOr<std::optional<std::string>> ReadIfChanged();

 private:
  // Values from stat; the file has changed if they differ.
  struct Stamp {
    int64_t modified_ns = 0;
    int64_t bytes = -1;
    uint64_t inode = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };

  std::string flag_, path_;
  const core::Clock* clock_ = &core::SystemClock();
  std::optional<Stamp> stamp_;         // absent: the file was not read yet
  std::optional<int64_t> shorter_ms_;  // since when the file is shorter, in its place
  bool failed_ = false;                // the last look failed, so that the next one reads
};

}  // namespace causeway::formats
