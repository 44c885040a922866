// A Llama trained by the ranks of a site as a pipeline: each rank holds the stages of its device, and runs the
// schedule's list for it.
//
//   batch ─► PipelinedLlama ─► gradients of what is held here ─► clip, inner optimizer ─► θ held here
//
// With one copy of the weights, θ has the bits of a single rank that trains with the same number of micro-batches.
// Clipping takes the squares of all tensors, summed in the manifest's order from each one's first holder. Every rank
// makes and calls the object in step with the others; one owner thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/pipeline_file.h"
#include "replica/host_store.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/llama_data.h"
#include "worker/parallel/pipelined_llama.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

class PipelineTrainer final : public Trainer {
 public:
  // Follows files.pipeline_path, which is the same on all ranks. INVALID_ARGUMENT as FitPipeline, MakeTrainer and
  // `make_stages`, and where a rank has another file.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       TrainerFiles files, const MakeStages& make_stages);

  const core::Manifest& manifest() const override { return places().manifest; }
  replica::ParameterStore& store() override { return store_; }
  std::span<float> tensor(int i) override { return model_->tensors()[static_cast<size_t>(i)]; }
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

 private:
  PipelineTrainer(const core::RunConfig& config, const TrainerFiles& files, std::unique_ptr<PipelinedLlama> model,
                  LlamaData data);
  absl::StatusOr<double> SumOfSquares(core::Step t);
  const PipelinePlaces& places() const { return model_->places(); }
  const std::vector<int>& held() const { return model_->held(); }
  int OwnerOf(size_t tensor) const { return places().ranks[tensor].front(); }
  Collectives::Timeout timeout() const { return TimeoutOf(ranks_.timeout_s); }

  const TrainerRanks ranks_;
  LlamaData data_;
  const std::unique_ptr<PipelinedLlama> model_;
  replica::HostStore store_;
  DataParallel parallel_;
  InnerOptimizer optimizer_;
  std::vector<GatheredTensor> gathered_;  // rank 0's, until Save
  double step_bytes_ = 0;
  int64_t sent_bytes_ = 0;
};

}  // namespace causeway::worker
