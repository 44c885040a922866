// A load generator in place of a model: tensors of a given size, a step of a given length, and a gradient known in
// advance, so that a test can replay a whole run and a small machine can simulate many large sites.
//
//   gradient g of tensor i, value j, in step t     constant   by_site[site]; 0 for a site that is not listed
//                                                  noise      by_site[site] · float(2·U − 1), uniform in [−1, 1)
//   U = UnitInterval(HashCombine(HashCombine(HashCombine(HashCombine(seed, site), i), t), j))   (core/random.h)
//
// In a site of R ranks the noise of rank r > 0 has HashCombine(HashCombine(seed, site), r) in place of
// HashCombine(seed, site), and the gradient is Σ_r float(g_r · float(1/R)), summed in float32 in the order of the
// ranks.
//
// With 1-bit Adam's variance frozen each rank's gradient is its own, g_r, without the factor.
//
// Clipping, schedule and inner optimizer are the same as for every other model. `apply: on_send` defers the steps: Step
// only waits, and the store takes all deferred steps of a tensor that is read or moved at once,
// θ ← fma(g, −Σ lr, θ), so that a step costs nothing however many the parameters. One rounding instead of one per step:
// its bits differ from `every_step`. It needs a constant gradient, sgd, no clipping and no weight decay.
//
// Tensor i counts as layer i. A step counts as batch_size tokens. The loss is NaN. One owner thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "replica/host_store.h"
#include "worker/optimizer/host_optimizer.h"
#include "worker/parallel/site_update.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

// θ whose steps are deferred: each tensor is brought up to date before it is read or moved.
class LazyStore final : public replica::HostStore {
 public:
  using CatchUp = std::function<void(int tensor)>;

  LazyStore(std::vector<std::span<float>> tensors, offload::BusSchedule* bus, CatchUp catch_up)
      : HostStore(std::move(tensors), bus), catch_up_(std::move(catch_up)) {}

  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override {
    for (const replica::UnitRange& range : ranges) catch_up_(range.tensor);
    return HostStore::BeginRead(ranges, staging);
  }

 private:
  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override {
    for (const replica::UnitRange& range : ranges) catch_up_(range.tensor);
    return HostStore::DoMove(ranges, movement);
  }

  const CatchUp catch_up_;
};

class SyntheticTrainer : public Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       const TrainerFiles& files);

  const core::Manifest& manifest() const override { return manifest_; }
  replica::ParameterStore& store() override { return store_; }
  std::span<float> tensor(int i) override { return parameters_[i]; }
  void Change(const core::RunConfig& config) override { rate().Change(config); }
  void MoveSchedule(int64_t run_tokens) override { rate().MoveTo(run_tokens); }
  absl::StatusOr<StepResult> Step(core::Step t) override;
  void SetSites(const std::vector<core::SiteId>&) override {}  // there is no data to share
  absl::Status GatherState() override { return optimizer_ == nullptr ? absl::OkStatus() : optimizer_->Gather(); }
  absl::StatusOr<formats::FileDigest> Save(const std::string& path) override;
  absl::Status Load(const std::string& path) override;
  InnerOptimizer* optimizer() const override { return optimizer_.get(); }
  core::RankProgress rank_progress() const override {
    return update_ ? update_->rank_progress() : core::RankProgress();
  }
  bool stop_requested() const override { return update_ && update_->stop_requested(); }

 private:
  SyntheticTrainer(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files);

  RateSchedule& rate() { return optimizer_ == nullptr ? rate_ : optimizer_->rate(); }
  bool PutsOff() const { return config_.synthetic.apply == core::SyntheticApply::kOnSend; }
  absl::Status PutOff(core::Step t);
  void CatchUp(int tensor);
  absl::StatusOr<StepResult> Apply(core::Step t);
  void FillGradients(core::Step t);

  const core::RunConfig config_;
  core::SiteId site_;
  int world_;
  float amplitude_ = 0;  // by_site[site]
  core::Manifest manifest_;
  const std::unique_ptr<ShardedTensors> tensors_;
  TensorValues& parameters_ = tensors_->own().weights;
  LazyStore store_{parameters_.MutableView(), &bus(), [this](int tensor) { CatchUp(tensor); }};
  // on_send only: the steps that some tensor still lacks, and how many of all deferred steps each tensor has taken.
  RateSchedule rate_;           // without an optimizer
  std::deque<double> put_off_;  // lr of each deferred step
  int64_t forgotten_ = 0;       // deferred steps no longer in put_off_
  std::vector<int64_t> taken_;
  // every_step only.
  std::unique_ptr<HostOptimizer> optimizer_;
  std::optional<SiteUpdate> update_;
};

}  // namespace causeway::worker
