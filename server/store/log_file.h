// One file of the chained log: what the coordinator has acknowledged, each record with the hash of the one before.
//
//   log/000007.log   |state|rows|rows|rows| …                      begun by a life, or when the one before is long
//
//   record           0  "CWLR"           16  epoch of the writer        64  contents
//                    4  kind             24  bytes of the contents      …   SHA-256 of all before, back to "CWLR"
//                    8  sequence         32  SHA-256 of the record before
//
// Numbers are little-endian. `state` holds every row at that point and changes none, so that a file can be read without
// the one before; `rows` holds what a commit changed. Contents are change sets of SQLite's session extension
// (schema.h). Sequences rise by one, from file to file, too.
//
// A last record is torn, not damaged, if no mark was made beyond it (high_water.h) and a part of it never reached the
// disk: it ends early, or one of its sectors is zero. Anything else that is wrong is damage.
// Source: "Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018), section 3.3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/posix_file.h"

namespace causeway::server {

using LogHash = std::array<std::byte, 32>;

// A place in the log: its record number `sequence`. 0: before the first one.
struct LogMark {
  uint64_t sequence = 0;
  LogHash hash = {};

  friend bool operator==(const LogMark&, const LogMark&) = default;
};

// Numbers stay what they are; 3 to 7 are kept for samples of the history, people's commands, ranks, settings and
// standbys.
enum class RecordKind : uint32_t { kState = 1, kRows = 2 };

struct LogRecord {
  RecordKind kind = RecordKind::kRows;
  uint64_t epoch = 0;
  LogMark previous;
  LogMark mark;  // of this one
  std::string contents;
};

// The records of a file, from its first one on.
struct LogContents {
  std::string path;
  std::vector<LogRecord> records;
  // Behind them lies something that is no record: where, and why it is none. Empty `wrong`: nothing lies there.
  std::string wrong;
  int64_t wrong_at = 0;
  bool torn = false;                     // as far as the file itself can say
  std::vector<LogRecord> behind_damage;  // whole records after it, chained among themselves
};

// Reads the file; `previous`: of its first record, where that is known. An unknown kind of a whole record is
// FAILED_PRECONDITION.
absl::StatusOr<LogContents> ReadLogFile(const std::string& path, const std::optional<LogMark>& previous);

class LogFile {
 public:
  // A new file; the next record follows `previous`. FAILED_PRECONDITION: there is one of this name.
  static absl::StatusOr<LogFile> Create(const std::string& path, const LogMark& previous, uint64_t epoch);

  absl::Status Append(RecordKind kind, std::string_view contents);  // durable when it returns OK

  const std::string& path() const { return path_; }
  const LogMark& end() const { return end_; }
  int64_t bytes() const { return bytes_; }

 private:
  LogFile(std::string path, formats::FileDescriptor file, const LogMark& previous, uint64_t epoch)
      : path_(std::move(path)), file_(std::move(file)), epoch_(epoch), end_(previous) {}

  std::string path_;
  formats::FileDescriptor file_;
  uint64_t epoch_;
  LogMark end_;
  int64_t bytes_ = 0;
};

}  // namespace causeway::server
