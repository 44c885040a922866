// One file of the chained log of acknowledged changes; each record contains the hash of the one before.
//
//   log/000007.log   |state|rows|rows|rows| …                      begun by a life, or when the previous one is long
//
//   record           0  "CWLR"           16  epoch of the writer        64  contents
//                    4  kind             24  bytes of the contents      …   SHA-256 of all before, back to "CWLR"
//                    8  sequence         32  SHA-256 of the record before
//
// Numbers are little-endian. `state` holds every row at that point and changes none, so that a file can be read without
// the previous one; `rows` holds the changes of a commit. Contents are change sets of SQLite's session extension
// (schema.h). Sequence numbers rise by one, also from file to file.
//
// Zeros are written ahead of the records, so that a commit writes into an already allocated part of the file and its
// flush need not wait for the file system's own journal. After the last record a file holds only zeros, or nothing if
// it was not written ahead.
//
// A last record is torn, not damaged, if no mark was made beyond it (high_water.h) and a part of it never reached the
// disk: it ends early, or one of its sectors is zero. Any other fault is damage, and so is a faulty record that another
// record follows, because the next one is written only once the previous one is durable.
// Source: "Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018), section 3.3.
#pragma once

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

// A place in the log: record number `sequence`. 0: before the first record.
struct LogMark {
  uint64_t sequence = 0;
  LogHash hash = {};

  friend bool operator==(const LogMark&, const LogMark&) = default;
};

// The numbers are fixed: 1 was the state of an earlier format, and 3 to 7 are reserved for samples of the history,
// operators' commands, ranks, settings and standbys. A program refuses files with a kind that it does not know.
enum class RecordKind : uint32_t { kRows = 2, kState = 8 };

struct LogRecord {
  RecordKind kind = RecordKind::kRows;
  uint64_t epoch = 0;
  LogMark previous;
  LogMark mark;  // of this record
  std::string contents;
};

int64_t SizeInFile(const LogRecord& record);

// The records of a file, from the first one on.
struct LogContents {
  std::string path;
  uint64_t digest = 0;  // XXH3-64 of the whole file
  int64_t end = 0;      // where the last record ends
  std::vector<LogRecord> records;
  // Why the bytes at `end` are no record. Empty: there are none.
  std::string wrong;
  bool torn = false;                     // the last record is torn, as far as this file alone can tell
  bool followed = false;                 // another record follows, whole or not, so this one had been synced
  std::optional<LogMark> wrong_after;    // the record that its header names as the previous one, if there is one
  std::vector<LogRecord> behind_damage;  // whole records after it, chained among themselves

  bool is_empty() const { return records.empty() && wrong.empty(); }
};

// Reads the file; `previous` is the mark before its first record, if known. FAILED_PRECONDITION: a whole record of
// unknown kind.
absl::StatusOr<LogContents> ReadLogFile(const std::string& path, const std::optional<LogMark>& previous);

// The end of a file's whole, consecutive records.
struct LogEnd {
  std::optional<LogMark> previous;  // before its first record; nullopt: the first one is not whole
  LogMark end;                      // the last record
  int64_t offset = 0;
  bool clean = false;  // the file holds nothing behind it
};

// Like ReadLogFile for a file of `file_bytes`, but reads piece by piece and keeps nothing. `read` fills the bytes from
// an offset on.
using ReadPiece = std::function<absl::Status(int64_t offset, std::span<std::byte> bytes)>;
absl::StatusOr<LogEnd> FindLogEnd(int64_t file_bytes, const ReadPiece& read);

class LogFile {
 public:
  // Creates a file; its first record follows `previous`. FAILED_PRECONDITION: a file of this name exists.
  static absl::StatusOr<LogFile> Create(const std::string& path, const LogMark& previous, uint64_t epoch);

  // Durable when it returns OK; with `sync` false, once a later Sync has returned OK.
  absl::Status Append(RecordKind kind, std::string_view contents, bool sync = true);
  absl::Status Sync() const;
  const std::shared_ptr<const formats::FileDescriptor>& file() const { return file_; }  // for a caller that syncs it

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
  int64_t bytes_ = 0;     // size of the records
  int64_t zeros_to_ = 0;  // end of the zeros written ahead
};

}  // namespace causeway::server
