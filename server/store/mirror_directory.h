// The directory of a standby: a copy of its leader's, true up to its mark.
//
//   MirrorPiece ── Take ─► log/, segments/, snapshots/ ─ a mark: fdatasync of all that it took ─► high_water ─► removals
//
// <state_dir>/standby.json says that it is a copy, so that no coordinator starts on it as it is, and whether it was
// promoted: then an ordinary start reads the log up to the mark (Journal::Open), and may lack what came after. Beyond the
// mark anything may be missing. One owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "formats/posix_file.h"
#include "server/store/high_water.h"
#include "server/store/mirror_feed.h"
#include "server/store/state_directory.h"

namespace causeway::server {

struct JournalOptions;

// The contents of standby.json.
struct StandbyNote {
  std::string leader;        // HOST:PORT of the coordinator whose copy it is
  std::string address;       // HOST:PORT of this one
  int place = 1;             // among all coordinators, for ever; the first leader's is 0
  bool promoted = false;     // it is to lead
  bool handed_over = false;  // it has everything: the leader has said so, and ended
  bool own = false;          // it is no copy, but what it wrote itself when it led
  uint64_t seen = 0;         // the latest epoch that it has heard of
};

// Nothing: the directory is no standby's. DATA_LOSS: the file is damaged.
absl::StatusOr<std::optional<StandbyNote>> ReadStandbyNote(const std::string& state_dir);
absl::Status WriteStandbyNote(const std::string& state_dir, const StandbyNote& note);
absl::Status RemoveStandbyNote(const std::string& state_dir);

// standbys.json of a coordinator that leads, or has led: whom a start asks first, whether they lead meanwhile.
struct KnownStandbys {
  std::vector<std::string> addresses;
  std::string handed_to;   // that one leads; empty: none, as far as this directory knows
  uint64_t handed_at = 0;  // by that record: a standby that has it leads, or will
};
absl::StatusOr<KnownStandbys> ReadKnownStandbys(const std::string& state_dir);  // none where there is no such file
absl::Status WriteKnownStandbys(const std::string& state_dir, const KnownStandbys& known);

// The sites that were in the run, its coordinators, and the last epoch, according to the log.
struct LastKnown {
  std::set<core::SiteId> sites;
  std::vector<std::string> coordinators;  // by place (schema.h)
  uint64_t epoch = 0;
  std::string lineage;
  std::string run_config;  // serialized
  std::string handed_to;   // the last record hands over to that standby; empty: it does not
};

// Up to that record; 0: to its end.
absl::StatusOr<LastKnown> ReadLastKnown(const std::string& state_dir, uint64_t mark);

// The epoch of a promotion: later than any that the leader's next starts would take, and another one for each place in
// its list of standbys, so that two that are promoted apart differ.
uint64_t EpochOfPromotion(uint64_t last, int place);
uint64_t TermOf(uint64_t epoch);  // rises with each promotion
// An earlier term, or an earlier start of the same coordinator; neither of two that were promoted in one term is.
bool IsOlder(uint64_t epoch, uint64_t than);

class MirrorDirectory {
 public:
  // Takes the lock. The log of a copy is cut behind its last whole record. FAILED_PRECONDITION: another process runs
  // there, or it was promoted.
  static absl::StatusOr<std::unique_ptr<MirrorDirectory>> Open(const std::string& path, const std::string& leader);

  // All that is here, for the leader to compare. Reads what has changed since the last call.
  absl::StatusOr<std::vector<MirrorFile>> Files();
  absl::Status SetAside();  // moves all of that to set_aside/N
  // From here on the directory is a copy: writes the note.
  absl::Status Begin(int place, const std::string& address);

  // INVALID_ARGUMENT: no file of a state has such a name; OUT_OF_RANGE: the bytes do not follow those that are here.
  // With a mark: returns when all before it is on the disk, and noted.
  absl::Status Take(const MirrorPiece& piece);

  // While a stream goes on, too, as the next.
  absl::StatusOr<LastKnown> ReadLastKnown(uint64_t mark) const { return server::ReadLastKnown(path_, mark); }
  // Why a start would be refused, after a handover or without.
  absl::Status CheckStart(const JournalOptions& options, uint64_t mark, bool handed_over);
  const LogMark& mark() const { return mark_; }  // sequence 0: the first copy is not whole
  // FAILED_PRECONDITION: there is no mark. Afterwards only an ordinary start may follow.
  absl::Status Promote(bool handed_over, uint64_t seen = 0);
  const std::string& address() const { return note_.address; }  // of the last stream; empty: there was none
  bool is_copy() const { return is_copy_; }  // false: it has led, and no leader has said yet what becomes of it

 private:
  MirrorDirectory(std::unique_ptr<StateDirectory> directory, StandbyNote note)
      : path_(directory->path()), directory_(std::move(directory)), note_(std::move(note)) {}
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  absl::StatusOr<const formats::FileDescriptor*> FileFor(const MirrorPiece& piece);
  absl::Status Mark(const LogMark& mark);
  absl::Status SyncAll() const;

  const std::string path_;
  std::unique_ptr<StateDirectory> directory_;  // the lock
  StandbyNote note_;
  bool is_copy_ = false;
  struct Unsynced {
    formats::FileDescriptor file;
    int64_t synced = 0;  // its bytes at the last mark
  };
  std::map<std::string, Unsynced> unsynced_;    // by name, over the streams until a mark
  std::map<std::string, MirrorFile> digested_;  // by name, unless it was written since
  std::set<std::string> folders_;               // with files that are new
  std::set<std::string> removed_;               // at the next mark
  core::Mutex start_;                           // a dry start
  std::optional<HighWater> high_water_;
  LogMark mark_;
};

}  // namespace causeway::server
