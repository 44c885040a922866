// The disks of simulated processes: real files, and beside each what of it would survive a crash at this instant.
//
//   write ─► the file, as its process sees it        ─┐
//            pending, beside what is durable          ├─ crash ─► the folder of the next life:
//   fsync ─► pending becomes durable                  │           what is durable, and of what is pending any part
//   create, rename, unlink ─► pending, in order, until the folder is synced ─┘
//
// The C library's calls on files below a disk's folder come here (disk_calls.cc takes their place at link time), those
// of SQLite and of the standard library included. A crash keeps all, nothing, or any of the sectors of a write that was
// not synced, and a prefix of a folder's changes. Faults, each with a chance of its own: no room, EIO of a write or a
// sync, a sync that takes its time. Damage of one file at a crash: a bit that flips, an end that is lost, synced writes
// that are lost or lie elsewhere. The disk keeps what the file should have been, so that it can be restored.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/machine.h"

namespace causeway::sim {

struct DiskFaults {
  // The chance of each is one in this number of calls; 0: never.
  int64_t no_room = 0;
  int64_t write_error = 0;
  int64_t sync_error = 0;
  int64_t slow_sync = 0;
};

// Harm to one file at a crash, beyond the loss of writes that were not synced. The chance of each is one in this number
// of crashes; 0: never.
struct DiskDamage {
  int64_t flipped_bit = 0;
  int64_t truncated = 0;
  int64_t lost_write = 0;         // one of its sectors is zero
  int64_t misdirected_write = 0;  // one of its sectors lies in the place of another one, too
  std::string mostly;             // in half of all cases a file of the last folder that begins so
};

class Disk {
 public:
  // `folder` does not exist; its lives are folders in it.
  Disk(Machine* machine, std::string folder);
  ~Disk();

  // The folder that the process of this life uses.
  std::string path() const;
  void Crash();  // the next life begins with what survived
  void Lose();   // the same, with nothing

  DiskFaults faults;
  int64_t faults_met() const { return faults_met_; }

  // ---- Damage ----
  DiskDamage damage;
  void Damage();  // after a crash; by chance
  int64_t files_damaged() const { return files_damaged_; }
  // An operator brings back the damaged files that the text names by their paths, or by the path of their folder with a
  // colon behind it. Not while a process runs. False: it names none.
  bool Restore(const std::string& text);

  using Contents = std::map<std::string, std::string>;  // by name within the folder
  Contents promised() const;                            // all that was synced, had nothing been damaged
  Contents synced() const;                              // and as it is

  // ---- Called for the C library's calls; 0 or the errno of a fault ----
  int BeforeWrite();
  int BeforeSync();
  void Wrote(const std::string& file, int64_t offset, const void* bytes, size_t size);
  void Truncated(const std::string& file, int64_t size);
  void Synced(const std::string& file);
  void SyncedFolder(const std::string& folder);
  void Created(const std::string& file);
  void Renamed(const std::string& from, const std::string& to);
  void Unlinked(const std::string& file);

  // The disk below whose folder the path lies; nullptr: none.
  static Disk* Of(const std::string& path);

 private:
  // The content of an inode, whatever its name is.
  struct Write {
    int64_t offset = 0;
    std::string bytes;
    int64_t truncate = -1;  // to this size instead
  };
  struct File {
    std::string durable;
    std::optional<std::string> sound;  // `durable`, had it not been damaged
    size_t promised = 0;               // after a crash: what lies beyond this many bytes was not synced before it
    std::vector<Write> pending;

    void Apply(const Write& write);
  };
  struct Change {  // of a folder
    enum class Kind { kCreate, kRename, kUnlink } kind;
    std::string name, to;
    std::shared_ptr<File> file;
  };

  File& At(const std::string& name);
  std::string NameOf(const std::string& path) const;  // within the folder
  static void Apply(const Write& write, std::string& content);
  File Survives(const File& file);
  std::string Damaged(std::string content, std::string* what);
  void Replace(const std::string& name, const std::string& content) const;
  int Fault(int64_t one_in, int error);

  Machine& machine_;
  const std::string folder_;
  int life_ = 0;
  bool copying_ = false;  // a crash fills the next life's folder
  int64_t faults_met_ = 0;
  int64_t files_damaged_ = 0;
  std::map<std::string, std::shared_ptr<File>> files_;          // as the process sees them
  std::map<std::string, std::shared_ptr<File>> durable_names_;  // as they would be found after a crash
  std::vector<Change> changes_;                                 // not synced yet, in order
};

}  // namespace causeway::sim
