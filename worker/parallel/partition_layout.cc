#include "worker/parallel/partition_layout.h"

#include <algorithm>

namespace causeway::worker {

PartitionLayout::PartitionLayout(const core::Manifest& manifest, const std::vector<std::vector<int>>& tensors_of_groups,
                                 std::vector<int64_t> of)
    : of_(std::move(of)) {
  places_.resize(manifest.size());
  for (const std::vector<int>& tensors : tensors_of_groups) {
    LayoutGroup& group = groups_.emplace_back();
    for (const int tensor : tensors) {
      const int64_t size = manifest[static_cast<size_t>(tensor)].NumValues();
      places_[static_cast<size_t>(tensor)] = {groups_.size() - 1, group.values};
      group.pieces.push_back({.tensor = tensor, .count = size, .at = group.values});
      group.values += size;
    }
    group.padded = (group.values + ranks() - 1) / ranks() * ranks();
  }
}

int64_t PartitionLayout::Parts(int level) const {
  int64_t parts = 1;
  for (int l = 0; l <= level; ++l) parts *= of_[static_cast<size_t>(l)];
  return parts;
}

int64_t PartitionLayout::IndexOf(int level, int64_t rank) const {
  int64_t index = 0;
  for (int l = 0; l <= level; ++l) {
    const int64_t of = of_[static_cast<size_t>(l)];
    index = index * of + rank % of;
    rank /= of;
  }
  return index;
}

Piece PartitionLayout::PartOf(size_t group, int level, int64_t rank) const {
  const int64_t size = groups_[group].padded / Parts(level);
  return {.rank = static_cast<int>(rank), .tensor = -1, .first = IndexOf(level, rank) * size, .count = size};
}

std::vector<Piece> PartitionLayout::Within(size_t group, const Piece& part) const {
  const int64_t end = part.first + part.count;
  std::vector<Piece> pieces;
  for (const Piece& tensor : groups_[group].pieces) {
    const int64_t from = std::max(part.first, tensor.at), to = std::min(end, tensor.at + tensor.count);
    if (from < to) pieces.push_back({part.rank, tensor.tensor, from - tensor.at, to - from, from});
  }
  const int64_t padding = std::max(part.first, groups_[group].values);
  if (padding < end) pieces.push_back({part.rank, -1, 0, end - padding, padding});
  return pieces;
}

}  // namespace causeway::worker
