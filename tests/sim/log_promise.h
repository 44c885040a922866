// The promise of a coordinator's log on a disk that fails: a start finds all that was acknowledged, or refuses.
//
//   the end of a life ─► what was synced, undamaged ─► acknowledged records ─┐
//   a crash ─► what the next start will find ─► is a loss of them visible? ──┼─► does the first record of the start's
//   a start that goes on ────────────────────────────────────────────────────┘   own file follow the last of them?
//
// The bytes are read by docs/wire_format.md, by none of the store's code. Damage may lose acknowledged records in
// silence in one case alone, which is the honest limit of decision 19:
//
//   - no whole slot of high_water and no frame of a segment names them or a later record, and
//   - the file was cut, so that it ends with a record or within one, as if those behind had never been written; or the
//     very last record has a sector of zeros, all before it is whole, and nothing lies behind, as if a write of it had
//     been under way. A changed bit or a sector of other contents is never such a case, nor are zeros in two records.
//
// A record that only repeats all rows (the first one of a file) may be lost: nothing is acknowledged by it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/disk.h"

namespace causeway::sim {

class LogPromise {
 public:
  // The end of a life that had begun a file of its own. `promised`: what was synced, as if nothing had been damaged.
  void Ended(const Disk::Contents& promised);
  // Whether acknowledged records are gone from what the next start finds, and nothing tells.
  bool LostWithoutATrace(const Disk::Contents& found) const;
  // A start has gone on from `found`; `said`: that it has made something good. Returns the wrong in it; "": none.
  std::string Started(const Disk::Contents& found, const Disk::Contents& synced, bool said) const;

 private:
  struct Record {
    uint32_t kind = 0;
    uint64_t sequence = 0;
    std::string previous, hash;

    bool repeats() const { return kind == 8; }  // a state
  };

  static std::vector<Record> RecordsOf(std::string_view file);
  bool IsWhole(const Disk::Contents& found) const;
  static uint64_t LastMark(const Disk::Contents& files);
  static uint64_t LastFrame(const Disk::Contents& files);

  std::string name_;  // the file that the acknowledged records were read from
  std::string file_;
  std::vector<Record> acknowledged_;
};

}  // namespace causeway::sim
