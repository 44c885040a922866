// The log of a state directory: the truth, of which journal.sqlite is an index.
//
//   <state_dir>/log/000007.log, 000008.log …   log_file.h; each life begins one, and another when it grows long
//   <state_dir>/high_water                     high_water.h: how far the log goes
//
// Within 50 ms a commit is noted outside the log: in high_water, or in the frame of a payload that became durable later
// (segments.h), so that a coordinator that receives payloads hardly ever writes high_water.
//
// A start reads the newest file whose beginning is intact. It keeps that file besides its own as a fallback, for the
// case that only the first record of a later one, which repeats known state, is damaged. The name of the next file is
// the fence: the process that creates it has taken the directory, and the previous life can acknowledge nothing more.
// Not thread-safe, except for durable() and on_disk().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "formats/atomic_file.h"
#include "server/store/high_water.h"
#include "server/store/log_file.h"

namespace causeway::server {

class StateLog {
 public:
  // Everything that earlier lives have acknowledged.
  struct Found {
    LogMark end;                        // the last record
    uint64_t epoch = 0;                 // the last record's writer
    std::vector<std::string> changes;   // in order, the first one fills empty tables (change_set.h)
    std::vector<std::string> repaired;  // harmless faults: one sentence each, naming the file
    std::string torn;                   // the fault of a torn last record, with its file; empty: none
    int64_t first_file = 0;             // the file whose first record the rows begin with
    int64_t last_file = 0;
    uint64_t last_digest = 0;  // digest of that file as it was read
    // Where the log is cut: the rest of that file is dropped. Empty: nowhere.
    std::string cut_path;
    int64_t cut_at = 0;
  };

  static formats::NumberedFiles Files(const std::string& state_dir);

  // Reads the log without changing it. RETURNS: none where there is no log. DATA_LOSS names the damaged or missing
  // record, its file, and how far the run was acknowledged.
  static absl::StatusOr<std::optional<Found>> Read(const std::string& state_dir);

  // How far the log is known to have been synced: the last record that a mark names.
  static absl::StatusOr<uint64_t> ReadMark(const std::string& state_dir);

  // Leaves out all records after number `last`, and expects none of those that the log ends before: after a loss of
  // power, where a relaxed journal had acknowledged what was not synced. DATA_LOSS: a record up to `last` is damaged.
  static absl::StatusOr<std::optional<Found>> ReadUpTo(const std::string& state_dir, uint64_t last);

  // DATA_LOSS if the log ends before record number `sequence`, which `witness` has noted.
  static absl::Status CheckReaches(const std::string& state_dir, const std::optional<Found>& found, uint64_t sequence,
                                   const std::string& witness);

  // Begins the file after found.last_file with all rows. ABORTED: that file has grown since it was read, so another
  // process was still at work; read it again.
  static absl::StatusOr<std::unique_ptr<StateLog>> Begin(const std::string& state_dir, const Found& found,
                                                         uint64_t epoch, std::string_view all_rows);

  // Durable when it returns OK; without `sync`, once its file is synced later. FAILED_PRECONDITION: another coordinator
  // has taken the directory, and no effect of these changes may be sent.
  absl::Status Append(std::string_view changes, bool sync = true);
  const LogFile& file() const { return file_; }
  void Synced(const LogMark& mark);  // the log is synced up to there

  bool IsLong() const { return file_.bytes() > 2 * state_bytes_ && file_.bytes() > kLongBytes; }
  absl::Status Continue(std::string_view all_rows);  // goes on in a new file

  // The deadline for the next mark; nothing: the end has been noted.
  std::optional<core::Clock::TimePoint> mark_due() const { return mark_due_; }
  absl::Status Mark();                       // notes the end in high_water, unless it is there already
  void NotedElsewhere(const LogMark& mark);  // the mark was noted durably elsewhere, where a start will look

  const LogMark& end() const { return file_.end(); }
  const LogMark& synced() const { return synced_; }
  // The numbers of the last record that counts as durable, and of the last that is on the disk; for any thread.
  uint64_t durable() const { return durable_; }
  uint64_t on_disk() const { return on_disk_; }

 private:
  static constexpr int64_t kLongBytes = int64_t{32} << 20;

  static absl::StatusOr<std::optional<Found>> ReadFiles(const std::string& state_dir, std::optional<uint64_t> last);

  StateLog(std::string directory, int64_t number, LogFile file, uint64_t epoch, HighWater high_water)
      : directory_(std::move(directory)),
        number_(number),
        file_(std::move(file)),
        epoch_(epoch),
        high_water_(std::move(high_water)) {}
  // `before`: the newest file whose beginning is intact, which is kept.
  absl::Status BeginFile(std::string_view all_rows, int64_t before);
  absl::Status CheckFence() const;
  absl::Status RemoveFilesBefore(int64_t number) const;

  const std::string directory_;
  int64_t number_;
  LogFile file_;
  const uint64_t epoch_;
  HighWater high_water_;
  uint64_t marked_ = 0;
  LogMark synced_;
  std::atomic<uint64_t> durable_ = 0;
  std::atomic<uint64_t> on_disk_ = 0;
  int64_t state_bytes_ = 0;
  std::optional<core::Clock::TimePoint> mark_due_;
};

}  // namespace causeway::server
