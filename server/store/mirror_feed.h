// A state directory on its way to a standby: every byte that a start needs, in the order in which it came to this disk.
//
//   journal's thread, snapshots ── Grown, Swept ─► MirrorFeed ── Next ─► pieces of files, then a mark ─► the standby
//
// It holds places in files, not bytes: a commit adds about 100 bytes, and waits for nothing. A file that vanished before
// it was sent is left out, and no mark is given before the standby has heard that the file is gone: a mark says that all
// that its record names has been sent. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "server/store/log_file.h"
#include "server/store/records.h"

namespace causeway::server {

// A part of a file, the end of one, or a mark.
struct MirrorPiece {
  std::string name;    // "log/000007.log", below the state directory; empty: none
  int64_t offset = 0;  // of the bytes; 0: the file begins anew
  std::string bytes;
  bool removed = false;
  LogMark mark;      // sequence 0: none
  std::string said;  // why the leader does not hand over; empty: nothing
};

// A file of a standby's copy.
struct MirrorFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t digest = 0;  // XXH3-64

  friend bool operator==(const MirrorFile&, const MirrorFile&) = default;
};

// How far a standby is behind.
struct MirrorFigures {
  std::string address;
  uint64_t sequence = 0;  // the last record that is on its disk with all that it names; 0: its first copy is not whole
  std::string unfit;      // why it could not lead; empty: as far as it knows it could
  uint64_t records_behind = 0;
  double seconds_behind = 0;
  int64_t bytes_behind = 0;  // not yet sent
  int64_t bytes = 0;         // in all, since its stream began
};

// The files of a copy that stay as they are: those whose bytes are the beginning of the same file in `directory`, and
// their lengths. FAILED_PRECONDITION: its log is no beginning of this one's, so that it is of another history. Reads all
// of them.
absl::StatusOr<std::map<std::string, int64_t>> Agreeing(const std::string& directory,
                                                        const std::vector<MirrorFile>& copy);

class MirrorFeed {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;
  static constexpr size_t kMostPlaces = size_t{1} << 14;  // beyond that, those of one file become one: fewer marks
  static constexpr int64_t kMarkMs = 20;                  // between two marks, while there is more to send

  static constexpr int64_t kBeatMs = 1'000;  // an empty piece, where there is nothing else

  explicit MirrorFeed(std::string directory, const core::Clock* clock = &core::SystemClock());  // `clock` outlives it
  // First: the standby's HOST:PORT, and the bytes of each file that it has (Agreeing).
  void Serve(const std::string& address, std::map<std::string, int64_t> held);

  // ---- The journal: first the files that are there, then what becomes of them ----
  // The file has bytes up to `to`, where a record ends if there is a mark.
  void Grown(const std::string& name, int64_t to, const LogMark& mark = {});
  void Replaced(const std::string& name, int64_t bytes);  // it has other bytes than before
  void Swept(const std::set<std::string>& present);       // all others are gone

  // ---- The stream ----
  // Blocks. CANCELLED: Stop was called; OUT_OF_RANGE: the standby has all, and no more comes (Finish).
  absl::StatusOr<MirrorPiece> Next();
  void Acknowledged(uint64_t sequence, const std::string& unfit = "");
  bool AwaitAcknowledged(core::Clock::TimePoint until);  // of all that has grown so far; false: it is not yet
  void Finish();                                         // the journal has ended
  void Say(const std::string& text);
  void Stop();

  MirrorFigures figures() const;

 private:
  struct Place {
    std::string name;
    int64_t from = 0, to = 0;
    bool removed = false;
    LogMark mark;  // of the record that ends at `to`; 0: none
  };
  struct Orders {
    bool finished = false, stopped = false;
    std::string say;
  };
  struct Moment {
    uint64_t sequence = 0;
    int64_t at_ms = 0;
  };

  void Add(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Condense() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MarkIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next part of the first place. Nothing: the place is void.
  std::optional<Place> Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Read(const Place& part, std::string& bytes) const;  // NOT_FOUND: the file is gone

  const std::string directory_;
  const core::Clock& clock_;
  mutable core::Mutex mutex_;
  core::Condition changed_;
  std::map<std::string, int64_t> queued_ ABSL_GUARDED_BY(mutex_);  // the files, and up to where they were added
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::deque<Place> places_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> skipped_ ABSL_GUARDED_BY(mutex_);  // they have vanished, and the standby has not heard of that
  LogMark newest_ ABSL_GUARDED_BY(mutex_), sent_ ABSL_GUARDED_BY(mutex_), marked_ ABSL_GUARDED_BY(mutex_);
  int64_t marked_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Moment> moments_ ABSL_GUARDED_BY(mutex_);  // when records came that are not acknowledged
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string unfit_ ABSL_GUARDED_BY(mutex_);
  int64_t unsent_ ABSL_GUARDED_BY(mutex_) = 0, total_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes
  Orders orders_ ABSL_GUARDED_BY(mutex_);
};

// The feeds of the standbys that are connected; the journal shows them what it writes. Thread-safe.
class MirrorFeeds {
 public:
  using List = std::vector<std::shared_ptr<MirrorFeed>>;

  explicit MirrorFeeds(std::string directory) : directory_(std::move(directory)) {}
  const std::string& directory() const { return directory_; }

  // From the journal's thread: all files, before anything else becomes of them.
  absl::Status Begin(const std::shared_ptr<MirrorFeed>& feed, const LogFile& log);
  void End(const std::shared_ptr<MirrorFeed>& feed);
  List all() const;
  // The streams of all others end. FAILED_PRECONDITION: that standby lacks too much, or another one has been named.
  absl::Status BeginHandOver(const std::shared_ptr<MirrorFeed>& to);
  void Know(std::vector<std::string> coordinators);  // by place (schema.h)
  std::vector<std::string> known() const;            // the addresses of the other coordinators that the run knows
  int PlaceOf(const std::string& address) const;     // among all that it has known
  absl::Status CheckMayForget(const std::string& address) const;  // FAILED_PRECONDITION: it is connected, or not known
  // Waits until the standbys have all that was written so far; those that do not have it by then, or are not connected.
  std::vector<std::string> AwaitCopies(core::Clock::Duration time) const;

  absl::Status Snapshot(const std::string& name) const;  // it has been written
  void Payload(const Extent& extent) const;              // ends there
  void Log(const LogFile& log) const;
  absl::Status Removals() const;  // some files are gone

 private:
  const std::string directory_;
  mutable core::Mutex mutex_;
  List feeds_ ABSL_GUARDED_BY(mutex_);
  std::string handed_to_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
