// Copies of a state directory elsewhere: consistent sets of files in a folder, which a hook takes to an object store.
//
//   DIR/files/4f1d02c37a9be860-fragment-3-000017.safetensors   each file once, under the digest of its contents
//   DIR/sets/20261130T044614Z-000000001234.json                a set: its run and shard, its last record, its files
//
//   journal's thread ─ Stage: hard links, rows ─► the copier's: links or copies, fdatasync, the set, older sets ─► hook
//
// A set is what a start needs, up to one record: snapshots, segments (new ones are begun, so that those of a set change
// no more), and a log of one record with all rows, but for the secret of proofs. It begins a lineage when it is
// restored. No commit waits for a copy, none ends a run: where one fails, the next is tried after the next snapshot.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/store/log_file.h"
#include "server/store/records.h"
#include "server/store/segments.h"
#include "server/store/sqlite.h"

namespace causeway::server {

struct CopyOptions {
  std::string directory;  // the folder of the sets; empty: no copies are made
  std::string hook;       // a command for bash, after each set; empty: none
  int keep = 3;           // sets
  std::string run_id;
  int64_t min_free_bytes = 0;  // with less than twice that on the state directory's disk one set stays, whatever `keep`
  int64_t hook_ms = 600'000;   // that a hook may take
  int64_t last_hook_ms = 60'000;  // the last, once the coordinator stops
  std::string restore_from;       // where there is no state: another copy (RestoreCopy); empty: none
};

struct CopyFigures {
  std::string directory;  // empty: no copies are made
  std::string set;        // the newest; empty: none was made in this life of the coordinator
  int64_t unix_ms = 0;    // when it was begun
  int64_t bytes = 0;      // of its files
  int64_t new_bytes = 0;  // of those that no set before it had
  double seconds = 0;     // that it took
  std::string
      hook_ended;  // the last one: "with 0", "with 3", "by signal 9", "after 600 s" …; empty: it has not, or there is none
  double hook_s = 0;
  std::string sent;    // the newest set whose hook ended with 0
  std::string failed;  // why the newest set is not where it should be; empty: it is
};

class Copies {
 public:
  // `idle` is called on its thread whenever another set may be staged.
  Copies(std::string state_dir, const core::Shard& shard, JournalIdentity identity, CopyOptions options,
         std::function<void()> idle);
  ~Copies();  // a hook that is still at work is ended

  void Begin();  // the run is served: a set of what is there now, and after each Want from then on
  void Want();
  CopyFigures figures() const;

  // ---- The journal's thread ----
  // If a set is wanted, and none at work.
  void Stage(Database& index, Segments& segments, const LogMark& end);
  // The last: a hook at work is ended, and one more set made, whose hook has last_hook_ms; `makes_last` false: none.
  void End(bool makes_last, const std::function<void()>& stage);

 private:
  struct File {
    std::string name;  // "snapshots/fragment-3-000017.safetensors", below the state directory
    std::string xxh3_64;
    int64_t bytes = 0;
  };
  struct Staged {
    std::vector<File> files;  // with digests where they are known
    LogMark end;
  };

  std::string Staging(const std::string& name) const { return state_dir_ + "/copying/" + name; }
  absl::Status StageFiles(Database& index, Segments& segments, Staged& staged) const;
  void Run();
  absl::Status Make(Staged staged, CopyFigures& figures) const;
  absl::Status WriteLog(const std::string& set, const Staged& staged) const;
  absl::Status Put(File& file, CopyFigures& figures) const;
  absl::Status Prune(std::vector<std::string>& sets, int keep) const;
  absl::Status RunHook(CopyFigures& figures) const;
  bool HookMustEnd(core::Clock::TimePoint started) const;
  void Show(const CopyFigures& figures);
  void AwaitIdle(std::optional<int64_t> hooks_end_ms = std::nullopt);

  const std::string state_dir_, shard_;
  const JournalIdentity identity_;
  const CopyOptions options_;
  const std::function<void()> idle_;
  mutable core::Mutex mutex_;
  mutable core::Condition changed_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false, wanted_ ABSL_GUARDED_BY(mutex_) = false,
              closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Staged> staged_ ABSL_GUARDED_BY(mutex_);                     // until its hook has ended
  std::optional<core::Clock::TimePoint> hooks_end_ ABSL_GUARDED_BY(mutex_);  // nothing: the coordinator does not stop
  CopyFigures figures_ ABSL_GUARDED_BY(mutex_);
  core::Thread thread_;  // uses everything above
};

// Fills a state directory without a log, whose lock the caller holds, from `from`: a folder of copies, whose newest set
// counts, or one of its sets/NAME.json. Nothing is written before each file was read and has its digest. RETURNS: the
// set's name; empty: there is a log, and nothing was done. NOT_FOUND, DATA_LOSS name the file that is missing or
// damaged, and the newest set that is whole; FAILED_PRECONDITION: it is of another run or shard. `progress` takes a
// sentence now and then.
absl::StatusOr<std::string> RestoreCopy(const std::string& from, const std::string& state_dir,
                                        const std::string& run_id, const core::Shard& shard,
                                        const std::function<void(const std::string&)>& progress);

}  // namespace causeway::server
