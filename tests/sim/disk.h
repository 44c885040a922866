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
// sync, a sync that takes its time. Built in and off until the journal proves itself: bits that flip, files that lose
// their end, synced writes that are lost or lie elsewhere.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
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
  // Damage at a crash: the chance is one in this number of files.
  int64_t flipped_bit = 0;
  int64_t truncated = 0;
  int64_t lost_write = 0;
  int64_t misdirected_write = 0;
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
    std::vector<Write> pending;
  };
  struct Change {  // of a folder
    enum class Kind { kCreate, kRename, kUnlink } kind;
    std::string name, to;
    std::shared_ptr<File> file;
  };

  File& At(const std::string& name);
  std::string NameOf(const std::string& path) const;  // within the folder
  static void Apply(const Write& write, std::string& content);
  std::string Survives(const File& file);
  int Fault(int64_t one_in, int error);

  Machine& machine_;
  const std::string folder_;
  int life_ = 0;
  bool copying_ = false;  // a crash fills the next life's folder
  int64_t faults_met_ = 0;
  std::map<std::string, std::shared_ptr<File>> files_;          // as the process sees them
  std::map<std::string, std::shared_ptr<File>> durable_names_;  // as they would be found after a crash
  std::vector<Change> changes_;                                 // not synced yet, in order
};

}  // namespace causeway::sim
