// The layout of a model's values divided over the ranks of a site, level by level.
//
//   a group: tensors back to back, padded so that all ranks may have an equal part
//   level 0 cuts it into of_0 parts, level 1 each of them into of_1, …: a level's part lies in that of the level below
//
// Rank r has the digits r = i_0 + of_0 (i_1 + of_1 (i_2 + …)) and, at level l, part ((i_0 of_1 + i_1) of_2 + …) + i_l.
// Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/manifest.h"
#include "worker/parallel/layout.h"

namespace causeway::worker {

inline constexpr int kWholeGroup = -1;  // instead of a level: not divided

class PartitionLayout {
 public:
  // `of`: the group size of each level, innermost first.
  PartitionLayout(const core::Manifest& manifest, const std::vector<std::vector<int>>& tensors_of_groups,
                  std::vector<int64_t> of);

  int64_t ranks() const { return Parts(static_cast<int>(of_.size()) - 1); }
  const std::vector<LayoutGroup>& groups() const { return groups_; }
  // The tensor's group, and the offset of the tensor in it.
  std::pair<size_t, int64_t> PlaceOf(int tensor) const { return places_[static_cast<size_t>(tensor)]; }
  int64_t Parts(int level) const;                  // number of parts of a group at this level
  int64_t IndexOf(int level, int64_t rank) const;  // the index of the rank's part
  // The rank's part of a group: values [first, first + count) of its array.
  Piece PartOf(size_t group, int level, int64_t rank) const;
  // The tensors, and padding, of such a part, in order; `at` is in the group's array.
  std::vector<Piece> Within(size_t group, const Piece& part) const;

 private:
  const std::vector<int64_t> of_;
  std::vector<LayoutGroup> groups_;
  std::vector<std::pair<size_t, int64_t>> places_;  // of each tensor
};

}  // namespace causeway::worker
