// A small file, named by a flag, that is reread whenever it has changed. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace causeway::server {

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

}  // namespace causeway::server
