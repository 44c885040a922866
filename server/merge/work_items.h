// The work items of a merge's threads: groups of units of sources that consist of units, such as chunks or tensors.
//
//   sources   |0: 70 units                  |1: 3 |2: 5  |3: 40           |
//   pieces    |32        |32        |6   |3   |5   |32         |8  |         whole tiles, except at a source's end
//   items     |0         |1         |2             |3          |4  |         pieces until there are kItemUnits
//
// Small enough that a large tensor is work for all cores and the first chunk leaves early; large enough that the cost
// of taking one is negligible. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "server/merge/contribution.h"

namespace causeway::server {

// 131,072 values, a quarter of a millisecond of one core's work.
inline constexpr int64_t kItemUnits = 32;
static_assert(kItemUnits % kTileUnits == 0);

struct Piece {
  size_t source = 0;
  int64_t first_unit = 0;  // in the source
  int64_t units = 0;
};

class WorkItems {
 public:
  explicit WorkItems(std::span<const int64_t> units_of_source);

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  std::span<const Piece> operator[](int64_t item) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<size_t> ends_;  // where each item's pieces end in pieces_
};

}  // namespace causeway::server
