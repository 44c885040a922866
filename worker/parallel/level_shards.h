// A model whose values all ranks of a site divide, over the levels of its links (inner.partition): data parallel,
// ZeRO-1, 2 and 3 and one level for each state are settings of one algorithm.
//
//   G   weights' parts ─► the whole stage, until R
//   R   behind a backward: gradients ─► this rank's part, summed over the ranks of the level
//   Finish   to the optimizer's part, summed over all ranks          Spread   weights: from there to the weights' part
//
// A head that is the embedding lies in stage 0, which stays gathered through a micro-batch; its gradient is summed
// apart, and added before the last R of the step. One owner thread; every rank makes the same calls. Bytes and memory:
// plan/partition.h. Sources: arXiv 1910.02054 (ZeRO), 2501.04266 (levels).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/link_levels.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "plan/partition.h"
#include "plan/pipeline_file.h"
#include "worker/parallel/gathered_stages.h"
#include "worker/parallel/level_groups.h"
#include "worker/parallel/partition_layout.h"
#include "worker/parallel/partitioned_values.h"
#include "worker/parallel/sharded_tensors.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

// Bytes at each link level of a site in a step, beside the prediction.
//
// One owner thread.
class LevelMeter {
 public:
  LevelMeter(const core::LinkLevels& levels, const plan::PartitionPlan& plan, int64_t micro_batches)
      : sent_(levels.site.size()) {
    for (size_t l = 0; l < levels.site.size(); ++l) {
      const plan::LevelBytes& bytes = plan.hierarchical[l];
      traffic_.push_back({levels.site[l].name, bytes.micro_batch * static_cast<double>(micro_batches) + bytes.step, 0});
    }
  }

  void EndStep(const LevelGroups& groups) {
    for (size_t l = 0; l < traffic_.size(); ++l) {
      const int64_t sent = groups.sent_bytes(static_cast<int>(l));
      traffic_[l].measured = static_cast<double>(sent - std::exchange(sent_[l], sent));
    }
  }
  const std::vector<core::LevelTraffic>& last_step() const { return traffic_; }

 private:
  std::vector<core::LevelTraffic> traffic_;
  std::vector<int64_t> sent_;  // bytes sent at each level so far
};

// The levels with these names: a missing level has one rank, and each state is divided at least as far as the previous
// one.
PartitionLevels ResolvePartition(const core::PartitionConfig& names, const core::LinkLevels& levels);

// The program of each rank, one stage a layer: for each micro-batch G F R of one layer after the other, then G B R
// back.
plan::PipelineFile PartitionProgram(const core::LlamaConfig& config, int64_t micro_batches, int world);

// The values of each of these stages, divided; a tied head is stage 0's.
PartitionLayout PartitionLayoutOf(const core::LlamaConfig& config, const core::LinkLevels& levels);

// The memory and the bytes of this model's ranks.
plan::PartitionPlan PartitionPlanOf(const core::LlamaConfig& config, const core::LinkLevels& levels,
                                    const PartitionLevels& at);

class LevelShards final : public ShardedTensors {
 public:
  // Every rank calls it. `ranks` outlive the object.
  static absl::StatusOr<std::unique_ptr<LevelShards>> Open(const core::RunConfig& config,
                                                           const core::LinkLevels& levels, const PartitionLevels& at,
                                                           const TrainerRanks& ranks);

  const MutableTensors& GradientsOf(int stage) override;
  absl::Status Gather(int stage) override;
  absl::Status Release(int stage) override;

  OwnTensors& own() override { return own_; }

  std::vector<Piece> own_pieces(int rank) const override;
  std::vector<Piece> pieces(int tensor) const override;
  SquareGroups square_groups() const override;

  absl::Status Initialize(const Fill& fill) override;
  void ForEachRun(int tensor, int64_t first, int64_t count, const UseRun& use) override {
    values_.ForEachRun(tensor, first, count, use);
  }
  std::unique_ptr<replica::ParameterStore> MakeStore(offload::BusSchedule* bus) override;

  void ClearGradients() override { values_.ClearGradients(); }
  void Begin(bool sums) override;
  absl::Status Finish() override { return values_.FinishGradients(); }
  absl::Status Spread() override;

  int64_t sent_bytes() const override;
  std::vector<core::LevelTraffic> levels() const override { return meter_.last_step(); }
  int64_t bytes() const override;

  // For tracing.
  const core::LinkLevels& link_levels() const { return link_levels_; }
  LevelGroups& groups() { return *groups_; }
  std::vector<int64_t> stage_values() const;

 private:
  LevelShards(const core::RunConfig& config, const core::LinkLevels& levels, const PartitionLevels& at,
              const TrainerRanks& ranks, std::unique_ptr<LevelGroups> groups);
  std::vector<int> Senders() const;  // the first rank that has each part of the optimizer's level

  const int world_;
  const core::LinkLevels link_levels_;
  const PartitionLevels at_;
  const PartitionLayout layout_;
  const std::unique_ptr<LevelGroups> groups_;
  PartitionedValues values_;
  OwnTensors own_;
  LevelMeter meter_;
  GatheredStages gathered_;
  std::vector<float> tied_head_;  // the head's gradient where it is the embedding
  const int64_t micro_batches_;
  int64_t backwards_ = 0;  // stage 0's backwards in this step
};

}  // namespace causeway::worker
