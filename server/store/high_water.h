// The end of the log, noted beside it: a log that ends earlier has lost acknowledged records.
//
//   <state_dir>/high_water   two slots of 4 KiB, written in turn: sequence, SHA-256 of that record, XXH3-64 of both
//
// A damaged slot is ignored: the other one is older by one mark. Not thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/posix_file.h"
#include "server/store/log_file.h"

namespace causeway::server {

class HighWater {
 public:
  struct Found {
    LogMark mark;            // the later of the two slots' marks
    int damaged = 0;         // slots that are neither empty nor as written, or cut off
    int64_t damaged_at = 0;  // offset of the last of these
    bool missing = false;    // the file does not exist
  };
  static absl::StatusOr<Found> Read(const std::string& path);

  // Creates the file if necessary.
  static absl::StatusOr<HighWater> Open(const std::string& path);

  absl::Status Write(const LogMark& mark);  // durable when it returns OK

 private:
  HighWater(std::string path, formats::FileDescriptor file, int next)
      : path_(std::move(path)), file_(std::move(file)), next_(next) {}

  std::string path_;
  formats::FileDescriptor file_;
  int next_;  // the slot to write
};

}  // namespace causeway::server
