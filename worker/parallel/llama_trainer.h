// A Llama trained on a site's text (data.mode own) or its share of the run's (shared): the Trainer of every real run.
//
//   LlamaData ─► LlamaModel: forward, backward ─► gradients ─► SiteUpdate ─► θ
//
// Starts from the run's seed or from a directory of safetensors (model.init_from); where this machine does not have
// that directory, from zeros, with which no site may be the first. One owner thread; the evaluator shares only the
// text, which is immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replica/host_store.h"
#include "worker/model/llama_model.h"
#include "worker/parallel/llama_data.h"
#include "worker/parallel/site_update.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

class LlamaTrainer : public Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       const TrainerFiles& files);

  const core::Manifest& manifest() const override { return manifest_; }
  replica::ParameterStore& store() override { return store_; }
  std::span<float> tensor(int i) override { return parameters_[i]; }
  absl::Status initial_values() const override { return data_.initial_values(); }
  absl::StatusOr<StepResult> Step(core::Step t) override;
  void SetSites(const std::vector<core::SiteId>& names) override { data_.SetSites(names); }
  absl::Status GatherState() override { return update_.optimizer().Gather(); }
  absl::StatusOr<formats::FileDigest> Save(const std::string& path) override;
  absl::Status Load(const std::string& path) override;
  std::unique_ptr<Evaluator> NewEvaluator() const override { return data_.NewEvaluator(); }
  core::SiteData data() const override { return data_.facts(); }
  std::optional<core::OffloadProgress> offload_progress() const override { return update_.offload_progress(); }
  core::RankProgress rank_progress() const override { return update_.rank_progress(); }
  bool stop_requested() const override { return update_.stop_requested(); }

 private:
  LlamaTrainer(const core::RunConfig& config, const TrainerFiles& files, LlamaData data);

  LlamaData data_;
  core::Manifest manifest_;
  TensorValues parameters_;
  replica::HostStore store_{parameters_.MutableView(), &bus()};
  TensorValues gradients_;
  const int64_t micro_batches_;
  LlamaModel model_;
  SiteUpdate update_;
};

}  // namespace causeway::worker
