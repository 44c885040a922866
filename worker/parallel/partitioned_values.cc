#include "worker/parallel/partitioned_values.h"

#include <algorithm>

#include "core/check.h"

namespace causeway::worker {

PartitionedValues::PartitionedValues(const PartitionLayout& layout, const PartitionLevels& levels, LevelGroups& groups,
                                     int rank)
    : layout_(layout), levels_(levels), groups_(groups), rank_(rank) {
  const int64_t parts = layout.Parts(levels.optimizer);
  for (const LayoutGroup& group : layout.groups()) {
    own_firsts_.push_back(own_);
    owns_.push_back(group.padded / parts);
    own_ += owns_.back();
  }
  weights_.resize(static_cast<size_t>(own_ * (parts / layout.Parts(levels.weights))));
  gradients_.resize(static_cast<size_t>(own_ * (parts / layout.Parts(levels.gradients))));
}

template <typename Run>
void PartitionedValues::ForEachPart(size_t group, std::span<float> part, std::span<float> array, const Run& run) const {
  const auto own = static_cast<size_t>(owns_[group]);
  for (size_t q = 0; q * own < part.size(); ++q) {
    const auto first = q * static_cast<size_t>(own_) + static_cast<size_t>(own_firsts_[group]);
    run(part.subspan(q * own, own), array.subspan(first, own));
  }
}

absl::Status PartitionedValues::Gather(size_t group, std::span<float> whole) {
  ForEachPart(group, groups_.Part(whole, kWholeGroup, levels_.weights), weights_,
              [](std::span<float> part, std::span<float> kept) { std::ranges::copy(kept, part.begin()); });
  return groups_.Gather(whole, levels_.weights, kWholeGroup);
}

absl::Status PartitionedValues::SpreadWeights() { return groups_.Gather(weights_, levels_.optimizer, levels_.weights); }

void PartitionedValues::ForEachRun(int tensor, int64_t first, int64_t count,
                                   const std::function<void(int64_t first, std::span<float> values)>& use) {
  const auto [group, at] = layout_.PlaceOf(tensor);
  const Piece held = layout_.PartOf(group, levels_.weights, rank_);
  int64_t value = std::max(at + first, held.first);
  const int64_t end = std::min(at + first + count, held.first + held.count), own = owns_[group];
  while (value < end) {
    const int64_t part = (value - held.first) / own, in_part = (value - held.first) % own;
    const int64_t run = std::min(end - value, own - in_part);
    use(value - at, std::span(weights_).subspan(static_cast<size_t>(part * own_ + own_firsts_[group] + in_part),
                                                static_cast<size_t>(run)));
    value += run;
  }
}

void PartitionedValues::ClearGradients() { std::ranges::fill(gradients_, 0.0f); }

absl::Status PartitionedValues::AddGradients(size_t group, std::span<float> whole) {
  RETURN_IF_ERROR(groups_.Scatter(whole, kWholeGroup, levels_.gradients));
  ForEachPart(group, groups_.Part(whole, kWholeGroup, levels_.gradients), gradients_,
              [](std::span<float> part, std::span<float> sum) {
                for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
              });
  return absl::OkStatus();
}

absl::Status PartitionedValues::FinishGradients() {
  RETURN_IF_ERROR(groups_.Scatter(gradients_, levels_.gradients, levels_.optimizer));
  // Groups of the optimizer's level hold the same part: their sum, on all of them.
  const int top = groups_.levels() - 1;
  RETURN_IF_ERROR(groups_.Scatter(own_gradients(), levels_.optimizer, top));
  return groups_.Gather(own_gradients(), top, levels_.optimizer);
}

}  // namespace causeway::worker
