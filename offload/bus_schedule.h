// Schedules the bus and host memory: the update phase comes first, the outer sync's copies use the rest.
//
//   step     |forward, backward     |update                      |forward …
//   update                           a  b  c  (d e: uncopied)  d e
//   copies    piece piece piece ·····  none                 piece   piece …
//
// A fragment's values of step t are copied in pieces, while step t+1 computes; they must be taken before the update of
// step t+1 changes them. While an update runs no piece is begun, so that at most one piece, begun before, is in its
// way; it takes the subgroups that are not waiting for a copy first, and only when nothing else is left does it let the
// copies continue and wait. Its waiting time is measured.
//
// Copies run on the thread that calls Copy (a site's copy thread), one at a time; the update on another. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/mutex.h"

namespace causeway::offload {

class BusSchedule {
 public:
  // Values that a piece has at most: 4 MB, some tenths of a millisecond.
  static constexpr int64_t kPiece = int64_t{1} << 20;

  // Values [first, first + count) of the state, flat as in SubgroupPlan.
  struct Range {
    int64_t first = 0;
    int64_t count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  // Announces that these ranges are to be copied before an update changes them, and not before Copy of the ticket that
  // it returns. Called by the thread that updates, between two updates.
  int64_t Announce(const std::vector<Range>& ranges);
  // Calls copy(piece) for one announced piece after the other; each is taken when the call returns. Returns when none
  // is left.
  void Copy(int64_t ticket, absl::FunctionRef<void(const Range& piece)> copy);

  // Begins an update: from here on no piece is begun, until EndUpdate, or AwaitCopied. One update at a time.
  void BeginUpdate();
  bool IsCopied(const Range& range) const;  // no value of `range` waits for a copy
  void AwaitCopied(const Range& range);
  void EndUpdate();

  double waited_s() const { return waited_s_; }  // seconds in all AwaitCopied

 private:
  struct Waiting {
    int64_t ticket = 0;
    Range range;
  };

  std::vector<Waiting>::iterator Next(int64_t ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCopiedLocked(const Range& range) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable core::Mutex mutex_;
  core::Condition changed_;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // in order, including the piece that is being copied
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  bool updating_ ABSL_GUARDED_BY(mutex_) = false;
  Range awaited_ ABSL_GUARDED_BY(mutex_);  // the range that the update awaits, with nothing else to do
  std::atomic<double> waited_s_ = 0;
};

}  // namespace causeway::offload
