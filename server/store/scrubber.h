// Rereads the stored data, slowly and continuously, because damage found only at the next start is found too late: the
// means to repair it are gone by then.
//
//   log/*.log     each record, the chain from file to file, its reach to the durable end  ──┐
//   high_water    both slots                                                                    ├─► file, offset,
//   segments/     frames and chunks of the payloads that rows name                              │   cause, cure
//   snapshots/    files that rows name                                                        ──┘
//
// It has its own connection to journal.sqlite and takes no lock of the journal. The files may be appended to or removed
// meanwhile: only data that was durable before the pass looked must be there, and a payload that no row names any more
// is not missed. Where possible, reads bypass the page cache: a copy in memory says nothing about the disk. Pass is for
// one thread, figures for any.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "formats/posix_file.h"
#include "server/store/records.h"
#include "server/store/sqlite.h"

namespace causeway::server {

struct DiskDamage {
  std::string file;
  int64_t offset = 0;  // where the damage is, or begins
  std::string cause;
  std::string cure;
  bool in_log = false;

  std::string Text() const;
};

struct ScrubFigures {
  int64_t passes = 0;               // completed
  int64_t bytes = 0;                // read by the last completed pass
  int64_t ended_unix_ms = 0;        // end of that pass; 0: none has ended
  int64_t bytes_now = 0;            // read by the pass in progress
  std::vector<DiskDamage> damages;  // found by either pass
};

// Determines when the next piece may be read, so that `bytes_per_s` is not exceeded. Unused time is not made up.
class ScrubPace {
 public:
  explicit ScrubPace(int64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  core::Clock::TimePoint After(int64_t bytes, core::Clock::TimePoint now);

 private:
  const int64_t bytes_per_s_;
  core::Clock::TimePoint next_;
};

struct ScrubOptions {
  std::string state_dir;
  int64_t bytes_per_s = 0;
  std::function<uint64_t()> durable;                       // the log's last record
  std::function<void(const DiskDamage&)> found;            // once for each place
  std::function<bool(core::Clock::TimePoint)> wait_until;  // false: end
  const core::Clock* clock = &core::SystemClock();
};

class Scrubber {
 public:
  explicit Scrubber(ScrubOptions options) : options_(std::move(options)), pace_(options_.bytes_per_s) {}

  // Reads everything once. CANCELLED: wait_until returned false.
  absl::Status Pass();
  void Run();  // one pass a day, or back to back if they take longer, until wait_until returns false

  ScrubFigures figures() const;

 private:
  absl::Status ReadAll();
  absl::Status ReadLog();
  absl::Status ReadMarks();
  absl::Status ReadPayloads(Database& index);
  absl::Status ReadPayload(Database& index, const formats::FileDescriptor& file, const Extent& extent);
  absl::Status ReadSnapshots(Database& index);
  absl::StatusOr<std::string> ReadWhole(const std::string& path);  // returns its hash
  absl::Status ReadPiece(const formats::FileDescriptor& file, const std::string& path, int64_t offset,
                         std::span<std::byte> out);
  void Note(DiskDamage damage);
  absl::Status NoteUnreadable(DiskDamage damage, const absl::Status& status);

  const ScrubOptions options_;
  ScrubPace pace_;
  int64_t failed_at_ = 0;                            // the last piece that could not be read
  std::vector<DiskDamage> damages_;                  // found by the pass in progress
  std::set<std::pair<std::string, int64_t>> known_;  // file and offset of each damage ever found

  mutable core::Mutex mutex_;
  ScrubFigures figures_ ABSL_GUARDED_BY(mutex_);
};

void LowerThreadPriority();  // of the calling thread, for the processor and the disk

// A scrubber on a thread of low priority, for as long as it lives. options.wait_until is ignored.
class ScrubThread {
 public:
  explicit ScrubThread(ScrubOptions options);
  ~ScrubThread();

  ScrubFigures figures() const { return scrubber_.figures(); }

 private:
  bool WaitUntil(core::Clock::TimePoint time);

  core::Mutex mutex_;
  core::Condition changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  Scrubber scrubber_;
  core::Thread thread_;  // last: it uses everything above
};

}  // namespace causeway::server
