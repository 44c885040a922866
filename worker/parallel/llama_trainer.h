// A Llama trained on a site's text (data.mode own) or its share of the run's (shared), by any number of ranks, on
// processors or devices: the Trainer of every real run.
//
//   LlamaData ─► program: F B I W ─► ModelStages     G R A ─► ShardedTensors ─► gradients ─► SiteUpdate ─► θ
//
//   one rank, data parallel    one stage on every rank: F B of each micro-batch, sums beside the last B
//   --pipeline                 the schedule's stages over the ranks; G R A as it says
//   inner.partition            one stage a layer on every rank: G F R of each, then G B R back
//
// Starts from the run's seed or from a directory of safetensors (model.init_from); where this machine does not have
// that directory, from zeros, with which no site may be the first. Every rank makes and calls the object in step with
// the others; one owner thread. The evaluator shares only the text, which is immutable. docs/trainer.md tells the life
// of a step.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/batches_ahead.h"
#include "worker/parallel/device_rank.h"
#include "worker/parallel/llama_data.h"
#include "worker/parallel/pipeline_executor.h"
#include "worker/parallel/pipeline_links.h"
#include "worker/parallel/pipeline_trace.h"
#include "worker/parallel/rank_parts.h"
#include "worker/parallel/site_update.h"
#include "worker/parallel/trainer.h"
#include "worker/parallel/work_trace.h"

namespace causeway::worker {

class LlamaTrainer final : public Trainer {
 public:
  // Trains on `device`, or on the processor if it is null. INVALID_ARGUMENT as FitPipeline, MakeTrainer and
  // DeviceRank::Open; a rank has another schedule than rank 0; levels of other ranks than the site's.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       const TrainerFiles& files,
                                                       std::unique_ptr<DeviceRank> device = nullptr);

  const core::Manifest& manifest() const override { return tensors().manifest(); }
  replica::ParameterStore& store() override { return *store_; }
  std::span<float> tensor(int i) override { return parts_.tensors->tensor(i); }
  std::vector<Piece> pieces(int tensor) const override { return tensors().pieces(tensor); }
  absl::Status initial_values() const override { return data_.initial_values(); }
  absl::StatusOr<StepResult> Step(core::Step t) override;
  void SetSites(const std::vector<core::SiteId>& names) override;
  absl::Status GatherState() override;
  absl::StatusOr<formats::FileDigest> Save(const std::string& path) override;
  absl::Status Load(const std::string& path) override;
  std::unique_ptr<Evaluator> NewEvaluator() const override;
  core::SiteData data() const override { return data_.facts(); }
  InnerOptimizer* optimizer() const override { return parts_.optimizer.get(); }
  core::RankProgress rank_progress() const override;
  bool stop_requested() const override { return update_->stop_requested(); }

  const ShardedTensors& tensors() const { return *parts_.tensors; }
  int64_t state_bytes() const;  // this rank's weights, gradients and moments, with stages while they are gathered

 private:
  struct Plan;  // the file of its program, and its partition

  LlamaTrainer(const TrainerRanks& ranks, PipelinePrograms programs, LlamaData data, std::unique_ptr<DeviceRank> device)
      : ranks_(ranks), programs_(std::move(programs)), device_(std::move(device)), data_(std::move(data)) {}
  absl::Status Open(const core::RunConfig& config, const Plan& plan, const TrainerFiles& files);
  absl::Status OpenWorkTrace(const core::RunConfig& config, const plan::PipelineFile& file, const TrainerFiles& files);
  const PipelineProgram& program() const {
    return programs_.devices[static_cast<size_t>(ranks_.rank() / ranks_.data_world())];
  }

  const TrainerRanks ranks_;
  const PipelinePrograms programs_;
  std::unique_ptr<DeviceRank> device_;  // null: the processor
  LlamaData data_;
  std::optional<BatchesAhead> ahead_;
  RankParts parts_;
  std::unique_ptr<replica::ParameterStore> store_;
  std::optional<SiteUpdate> update_;
  std::unique_ptr<PipelineLinks> links_;
  std::unique_ptr<PipelineTrace> trace_;   // null: tracing is off
  std::unique_ptr<WorkTrace> work_trace_;  // rank 0's, with a partition; null: tracing is off
  std::vector<GatheredTensor> gathered_;   // rank 0's, until Save
  int64_t sent_bytes_ = 0;                 // bytes sent until the last step
  double step_bytes_ = 0;                  // bytes sent in the last step
};

}  // namespace causeway::worker
