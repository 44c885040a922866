#include "worker/parallel/partition_layout.h"

#include <algorithm>
#include <utility>

namespace causeway::worker {

PartitionLayout::PartitionLayout(const core::Manifest& manifest, const std::vector<std::vector<int>>& tensors_of_groups,
                                 std::vector<int64_t> of)
    : of_(std::move(of)) {
  for (const core::TensorSpec& spec : manifest) sizes_.push_back(spec.NumValues());
  places_.resize(sizes_.size());
  for (const std::vector<int>& tensors : tensors_of_groups) {
    LayoutGroup& group = groups_.emplace_back();
    group.tensors = tensors;
    for (const int tensor : tensors) {
      places_[static_cast<size_t>(tensor)] = {groups_.size() - 1, group.values};
      group.firsts.push_back(group.values);
      group.values += sizes_[static_cast<size_t>(tensor)];
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

Interval PartitionLayout::PartOf(size_t group, int level, int64_t rank) const {
  const int64_t size = groups_[group].padded / Parts(level);
  return {IndexOf(level, rank) * size, size};
}

std::vector<TensorPart> PartitionLayout::Within(size_t group, const Interval& interval) const {
  const LayoutGroup& of = groups_[group];
  const int64_t end = interval.first + interval.count;
  std::vector<TensorPart> parts;
  for (size_t i = 0; i < of.tensors.size(); ++i) {
    const int64_t size = sizes_[static_cast<size_t>(of.tensors[i])];
    const int64_t from = std::max(interval.first, of.firsts[i]), to = std::min(end, of.firsts[i] + size);
    if (from < to) parts.push_back({of.tensors[i], from - of.firsts[i], to - from, from});
  }
  const int64_t padding = std::max(interval.first, of.values);
  if (padding < end) parts.push_back({-1, 0, end - padding, padding});
  return parts;
}

}  // namespace causeway::worker
