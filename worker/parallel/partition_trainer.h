// A Llama trained by ranks that divide weights, gradients and the optimizer's state over the levels of their site's
// links (inner.partition): data parallel, ZeRO-1, 2 and 3 and one level for each state are settings of one algorithm.
//
//   a micro-batch   for each layer: gather ─► forward ─► drop
//                   backward: gather ─► backward ─► sum, this rank's part ─► drop
//   a step          gradients ─► the optimizer's part, summed over all ranks ─► clip, AdamW (offload/)
//                   ─► weights' parts
//
// A layer is gathered on demand, and waited for. Every rank makes and calls the object in step with the others; one
// owner thread. Bytes and memory: plan/partition.h. Sources: arXiv 1910.02054 (ZeRO), 2501.04266 (levels).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/link_levels.h"
#include "plan/partition.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/level_groups.h"
#include "worker/parallel/level_meter.h"
#include "worker/parallel/llama_data.h"
#include "worker/parallel/owned_parts.h"
#include "worker/parallel/partition_layout.h"
#include "worker/parallel/partition_store.h"
#include "worker/parallel/partitioned_llama.h"
#include "worker/parallel/partitioned_values.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

// The levels with these names: a missing level has one rank, and each state is divided at least as far as the previous
// one.
PartitionLevels ResolvePartition(const core::PartitionConfig& names, const core::LinkLevels& levels);

class PartitionTrainer final : public Trainer {
 public:
  // config.inner.partition must be set. INVALID_ARGUMENT: as MakeTrainer; levels of other ranks than the site's.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       const TrainerFiles& files);

  const core::Manifest& manifest() const override { return manifest_; }
  replica::ParameterStore& store() override { return store_; }
  std::span<float> tensor(int i) override;  // a copy of the values here; the rest is zero
  std::vector<TensorPiece> pieces(int tensor) const override;
  absl::Status initial_values() const override { return data_.initial_values(); }
  absl::StatusOr<StepResult> Step(core::Step t) override;
  std::optional<core::OffloadProgress> offload_progress() const override { return optimizer_.progress(); }
  core::RankProgress rank_progress() const override;
  bool stop_requested() const override { return parallel_.stop_requested(); }
  core::SiteData data() const override { return data_.facts(); }
  void SetSites(const std::vector<core::SiteId>& names) override { data_.SetSites(names); }
  absl::Status GatherState() override;
  absl::StatusOr<formats::FileDigest> Save(const std::string& path) override;
  absl::Status Load(const std::string& path) override;
  std::unique_ptr<Evaluator> NewEvaluator() const override { return data_.NewEvaluator(); }

  int64_t state_bytes() const;  // of this rank: states, and layers while they are gathered

 private:
  struct Site {
    core::LinkLevels levels;
    PartitionLevels partition;
    std::unique_ptr<LevelGroups> groups;
    std::unique_ptr<WorkTrace> trace;  // rank 0's; null: none is written
  };

  PartitionTrainer(const core::RunConfig& config, const TrainerFiles& files, Site site, LlamaData data);
  absl::Status Initialize();
  absl::Status OpenTrace(const std::string& path);
  absl::StatusOr<double> SumOfSquares(core::Step t);
  Collectives::Timeout timeout() const { return TimeoutOf(ranks_.timeout_s); }

  const TrainerRanks ranks_;
  Site site_;
  LlamaData data_;
  const core::Manifest manifest_;
  const PartitionLayout layout_;
  PartitionedValues values_;
  PartitionStore store_{values_};
  PartitionedLlama model_;
  DataParallel parallel_;
  const OwnedParts owned_;
  TensorValues own_weights_, own_gradients_;  // of these
  InnerOptimizer optimizer_;
  LevelMeter meter_;
  std::vector<GatheredTensor> gathered_;  // rank 0's, until Save
  std::vector<float> copied_;             // of tensor()
};

}  // namespace causeway::worker
