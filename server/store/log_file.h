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
// Zeros are written ahead of the records, so that a commit writes into a file that is that long already and its flush
// need not wait for the file system's own journal. A file ends behind its last record: what follows is zero, or nothing
// in a file that was not written ahead.
//
// A last record is torn, not damaged, if no mark was made beyond it (high_water.h) and a part of it never reached the
// disk: it ends early, or one of its sectors is zero. Anything else that is wrong is damage, and so is a record behind
// which another one begins, because that is written only once this one is durable.
// Source: "Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018), section 3.3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/posix_file.h"
#include "formats/sha256.h"

namespace causeway::server {

using LogHash = formats::Sha256Hash;

// A place in the log: its record number `sequence`. 0: before the first one.
struct LogMark {
  uint64_t sequence = 0;
  LogHash hash = {};

  friend bool operator==(const LogMark&, const LogMark&) = default;
};

// Numbers stay what they are: 1 was the state of an earlier format, and 3 to 7 are kept for samples of the history,
// people's commands, ranks, settings and standbys. A program refuses files with a kind that it does not know.
enum class RecordKind : uint32_t { kRows = 2, kState = 8 };

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
  uint64_t digest = 0;  // XXH3-64 of the whole file
  int64_t end = 0;      // of the last record
  std::vector<LogRecord> records;
  // At `end` lies something that is no record: why it is none. Empty: nothing lies there.
  std::string wrong;
  bool torn = false;                     // as far as the file itself can say
  bool followed = false;                 // by another record, whole or not: so it had been synced
  std::optional<LogMark> wrong_after;    // the record that its header names as the one before, if it is there
  std::vector<LogRecord> behind_damage;  // whole records after it, chained among themselves

  bool is_empty() const { return records.empty() && wrong.empty(); }
};

// Reads the file; `previous`: of its first record, where that is known. An unknown kind of a whole record is
// FAILED_PRECONDITION.
absl::StatusOr<LogContents> ReadLogFile(const std::string& path, const std::optional<LogMark>& previous);

// As far as the records of a file are whole and follow each other.
struct LogEnd {
  std::optional<LogMark> previous;  // of its first record; nothing: that one is not whole
  LogMark end;                      // of the last one
  int64_t offset = 0;
  bool clean = false;  // nothing lies there
};

// The same as ReadLogFile of a file of that many bytes, but a piece at a time, and none of it is kept. `read` fills the
// bytes from an offset on.
using ReadPiece = std::function<absl::Status(int64_t offset, std::span<std::byte> bytes)>;
absl::StatusOr<LogEnd> FindLogEnd(int64_t file_bytes, const ReadPiece& read);

class LogFile {
 public:
  // A new file; the next record follows `previous`. FAILED_PRECONDITION: there is one of this name.
  static absl::StatusOr<LogFile> Create(const std::string& path, const LogMark& previous, uint64_t epoch);

  // Durable when it returns OK, but for `sync` false: then it is when Sync has returned OK since.
  absl::Status Append(RecordKind kind, std::string_view contents, bool sync = true);
  absl::Status Sync() const;
  const std::shared_ptr<const formats::FileDescriptor>& file() const { return file_; }  // to be synced

  const std::string& path() const { return path_; }
  const LogMark& end() const { return end_; }
  int64_t bytes() const { return bytes_; }

 private:
  LogFile(std::string path, formats::FileDescriptor file, const LogMark& previous, uint64_t epoch)
      : path_(std::move(path)),
        file_(std::make_shared<const formats::FileDescriptor>(std::move(file))),
        epoch_(epoch),
        end_(previous) {}

  void WriteZerosAhead();

  std::string path_;
  std::shared_ptr<const formats::FileDescriptor> file_;
  uint64_t epoch_;
  LogMark end_;
  int64_t bytes_ = 0;     // of the records
  int64_t zeros_to_ = 0;  // how far the file was written ahead
};

}  // namespace causeway::server
