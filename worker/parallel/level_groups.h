// Collectives over the link levels of a site: all-gathers and reduce-scatters, level by level.
//
//   Scatter   level 0 ─► level 1 ─► …     each reduces a rank's values to its part     sums over the group of the level
//   Gather    … ─► level 1 ─► level 0     and back
//
// So an outer, slower level carries of_0 · of_1 · … times less than the innermost (plan/partition.h has the bytes).
// Sums have the order of ranks at each level: their bits depend on the levels, not on the transport. All operations are
// in place: the part of a level lies within that of the one below (partition_layout.h). One owner thread; every rank
// makes the same calls.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/work_trace.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

class LevelGroups {
 public:
  // `of`: the group size of each level, innermost first; their product is the number of ranks. Every rank calls it;
  // `ranks` outlives the object.
  static absl::StatusOr<std::unique_ptr<LevelGroups>> Open(Collectives& ranks, std::vector<int64_t> of,
                                                           Collectives::Timeout timeout);

  // The part of `level` that this rank has of an array that is a part of the level `of_level`; −1: whole.
  std::span<float> Part(std::span<float> array, int of_level, int level) const;

  // `array` is a part of level `to`, of which the part of level `from` is present; afterwards all of it is. Errors as
  // the ranks'.
  absl::Status Gather(std::span<float> array, int from, int to);
  // `array` is a part of level `from`; then its part of level `to` is the sum over the ranks between.
  absl::Status Scatter(std::span<float> array, int from, int to);

  int64_t sent_bytes(int level) const;  // sent so far; a rank receives as many
  int levels() const { return static_cast<int>(of_.size()); }
  int rank() const { return rank_; }

  // Notes each operation as "gather LEVEL" or "scatter LEVEL", by the resource "link LEVEL". It outlives the object.
  void Trace(WorkTrace* trace, std::vector<std::string> names) {
    trace_ = trace;
    names_ = std::move(names);
  }

 private:
  LevelGroups(int rank, std::vector<int64_t> of, Collectives::Timeout timeout);
  // Awaits an operation of a level, and notes it.
  absl::Status Finish(const char* what, size_t level, Collectives::Ticket ticket, std::span<const float> part);

  const int rank_;
  const std::vector<int64_t> of_;
  std::vector<int64_t> digits_;  // this rank's digit at each level
  const Collectives::Timeout timeout_;
  std::vector<std::unique_ptr<Collectives>> groups_;  // null: a group of one rank
  WorkTrace* trace_ = nullptr;
  std::vector<std::string> names_;  // the levels' names
};

}  // namespace causeway::worker
