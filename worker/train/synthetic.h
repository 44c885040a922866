// A load generator in place of a model: tensors of a given size, a step of a given length, and a gradient that is known
// in advance, so that a test can replay a whole run and a small machine can play many large sites.
//
//   gradient g of tensor i, value j, in step t     constant   by_site[site]; 0 for a site that is not listed
//                                                  noise      by_site[site] · float(2·U − 1), uniform in [−1, 1)
//   U = UnitInterval(HashCombine(HashCombine(HashCombine(HashCombine(seed, site), i), t), j))   (core/random.h)
//
// Clipping, schedule and inner optimizer are the same as for every other model. `apply: on_send` puts the steps off:
// Step only waits, and CatchUp takes the missed steps of the fragment about to be sent as one,
// θ ← fma(g, −Σ lr, θ), so that a step costs nothing however many the parameters. One rounding instead of one per step:
// its bits differ from `every_step`. It needs a constant gradient, sgd, no clipping and no weight decay.
//
// Tensor i counts as layer i. A step counts as batch_size tokens. The loss is NaN. One owner thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "worker/train/inner_optimizer.h"
#include "worker/train/trainer.h"

namespace causeway::worker {

class SyntheticTrainer : public Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       const TrainerFiles& files);

  const core::Manifest& manifest() const override { return manifest_; }
  std::span<float> tensor(int i) override { return parameters_[i]; }
  absl::StatusOr<StepResult> Step(core::Step t) override;
  void SetSites(const std::vector<core::SiteId>&) override {}  // there is no data to share
  void CatchUp(std::span<const int> tensors, core::Step t) override;
  void EnterAfter(core::Step t) override;
  absl::Status Save(const std::string& path) const override;
  absl::Status Load(const std::string& path) override;
  std::optional<core::OffloadProgress> offload_progress() const override {
    return optimizer_ ? optimizer_->progress() : std::nullopt;
  }

 private:
  SyntheticTrainer(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files);

  bool PutsOff() const { return config_.synthetic.apply == core::SyntheticApply::kOnSend; }
  absl::Status PutOff(core::Step t);
  absl::Status Apply(core::Step t);
  void FillGradients(core::Step t);

  core::RunConfig config_;
  core::SiteId site_;
  float amplitude_ = 0;  // by_site[site]
  core::Manifest manifest_;
  TensorValues parameters_;
  std::vector<core::Step> applied_;        // last step in each tensor; on_send only
  std::optional<TensorValues> gradients_;  // every_step only
  std::optional<InnerOptimizer> optimizer_;
};

}  // namespace causeway::worker
