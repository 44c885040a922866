// The log of a state directory: the truth, of which journal.sqlite is an index.
//
//   <state_dir>/log/000007.log, 000008.log …   log_file.h; each life begins one, and one more where it grows long
//   <state_dir>/high_water                     high_water.h: how far the log goes
//
// Within 50 ms of a commit a place outside the log has noted it: high_water, or the frame of a payload that became
// durable later (segments.h), so that a coordinator that receives payloads hardly ever writes high_water.
//
// A start reads the newest file that begins whole. It keeps that one beside its own, so that it takes its place where
// only the first record of a later one, which repeats what is known, is damaged. The name of the next file is the
// fence: the process that makes it has taken the directory, and the life before says nothing more. Not thread-safe, but
// for durable().
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
#include "formats/numbered_files.h"
#include "server/store/high_water.h"
#include "server/store/log_file.h"

namespace causeway::server {

class StateLog {
 public:
  // All that earlier lives have acknowledged.
  struct Found {
    LogMark end;                        // of the last record
    uint64_t epoch = 0;                 // of its writer
    std::vector<std::string> changes;   // in order, the first one fills empty tables (change_set.h)
    std::vector<std::string> repaired;  // what was wrong and did no harm: one sentence each, with the file
    std::string torn;                   // of these the last record, with its file; empty: none
    int64_t first_file = 0;             // whose first record the rows begin with
    int64_t last_file = 0;
    uint64_t last_digest = 0;  // of that file as it was read
  };

  static formats::NumberedFiles Files(const std::string& state_dir);

  // Nothing: there is no log. DATA_LOSS says which record of which file is damaged or missing, and how far the run was
  // acknowledged. Changes nothing.
  static absl::StatusOr<std::optional<Found>> Read(const std::string& state_dir);

  // DATA_LOSS if the log ends before the record of that number, which `witness` has kept.
  static absl::Status CheckReaches(const std::string& state_dir, const std::optional<Found>& found, uint64_t sequence,
                                   const std::string& witness);

  // Begins the file after found.last_file with all rows. ABORTED: that one has grown since it was read, so that
  // another process was still at work; read again.
  static absl::StatusOr<std::unique_ptr<StateLog>> Begin(const std::string& state_dir, const Found& found,
                                                         uint64_t epoch, std::string_view all_rows);

  // Durable when it returns OK; without `sync`, once its file was synced since. FAILED_PRECONDITION: another
  // coordinator has taken the directory, and nothing that follows from these changes may be said.
  absl::Status Append(std::string_view changes, bool sync = true);
  const LogFile& file() const { return file_; }
  void Synced(const LogMark& mark);  // the log up to there

  bool IsLong() const { return file_.bytes() > 2 * state_bytes_ && file_.bytes() > kLongBytes; }
  absl::Status Continue(std::string_view all_rows);  // in a new file

  // When the mark is to be made at the latest; nothing: what is at the end has been noted.
  std::optional<core::Clock::TimePoint> mark_due() const { return mark_due_; }
  absl::Status Mark();                       // unless it stands there
  void NotedElsewhere(const LogMark& mark);  // durably, where a start looks

  const LogMark& end() const { return file_.end(); }
  const LogMark& synced() const { return synced_; }
  uint64_t durable() const { return durable_; }  // the number of the last record; for any thread

 private:
  static constexpr int64_t kLongBytes = int64_t{32} << 20;

  StateLog(std::string directory, int64_t number, LogFile file, uint64_t epoch, HighWater high_water)
      : directory_(std::move(directory)),
        number_(number),
        file_(std::move(file)),
        epoch_(epoch),
        high_water_(std::move(high_water)) {}
  // `before`: the newest file that begins whole, and is kept.
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
  int64_t state_bytes_ = 0;
  std::optional<core::Clock::TimePoint> mark_due_;
};

}  // namespace causeway::server
