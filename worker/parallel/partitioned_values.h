// Weights and gradients of a model that are divided over the levels of a site: this rank's part of them, and whole
// groups during their computation.
//
//   Gather(group): weights of a level's part ─► whole
//   … backward …
//   AddGradients(group): whole ─► this rank's part
//   FinishGradients: to the optimizer's part, summed over all ranks
//   Step
//   SpreadWeights: from there to the weights' part
//
//   in memory   |part 0: group 0, group 1, … |part 1: group 0, …|      each as large as the optimizer's part
//
// So the values that cross once a step are one array, and the optimizer's part is another.
//
// One owner thread; every rank makes the same calls.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/parallel/level_groups.h"
#include "worker/parallel/partition_layout.h"

namespace causeway::worker {

// The level over which each state is divided; kWholeGroup: each rank has all of it.
struct PartitionLevels {
  int weights = kWholeGroup, gradients = kWholeGroup, optimizer = kWholeGroup;
};

class PartitionedValues {
 public:
  // The arguments outlive it.
  PartitionedValues(const PartitionLayout& layout, const PartitionLevels& levels, LevelGroups& groups, int rank);

  // ---- Weights ----
  absl::Status Gather(size_t group, std::span<float> whole);  // `whole` has the group's padded size
  absl::Status SpreadWeights();
  // Calls `use(first, values)` for each run of a tensor's values [first, first + count) that this rank has.
  void ForEachRun(int tensor, int64_t first, int64_t count,
                  const std::function<void(int64_t first, std::span<float> values)>& use);

  // ---- Gradients ----
  void ClearGradients();
  absl::Status AddGradients(size_t group, std::span<float> whole);  // changes `whole`
  absl::Status FinishGradients();

  // ---- The optimizer's part, groups back to back ----
  std::span<float> own_weights() { return groups_.Part(weights_, levels_.weights, levels_.optimizer); }
  std::span<float> own_gradients() { return groups_.Part(gradients_, levels_.gradients, levels_.optimizer); }

  int64_t bytes() const { return static_cast<int64_t>((weights_.size() + gradients_.size()) * sizeof(float)); }

 private:
  // Pairs the runs of a group's part with their place in an array of such parts: calls `run(values, array values)`.
  template <typename Run>
  void ForEachPart(size_t group, std::span<float> part, std::span<float> array, const Run& run) const;

  const PartitionLayout& layout_;
  const PartitionLevels levels_;
  LevelGroups& groups_;
  const int rank_;
  std::vector<int64_t> owns_;        // for each group, the size of the optimizer's part in values
  std::vector<int64_t> own_firsts_;  // and where that part begins among all groups'
  int64_t own_ = 0;                  // the size of all groups' parts
  std::vector<float> weights_, gradients_;
};

}  // namespace causeway::worker
