#include "worker/parallel/synthetic.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "core/thread.h"
#include "offload/adamw.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/held_tensors.h"

namespace causeway::worker {
namespace {

absl::Status CheckCanPutOff(const core::RunConfig& config) {
  if (config.synthetic.gradient != core::SyntheticGradient::kConstant) {
    return absl::InvalidArgumentError("model.gradient.apply: on_send needs gradient.kind: constant, got noise");
  }
  if (config.inner.optimizer != core::InnerOptimizerKind::kSgd || config.inner.clip != 0 ||
      config.inner.weight_decay != 0) {
    return absl::InvalidArgumentError(
        "model.gradient.apply: on_send needs inner.optimizer: sgd, inner.clip: 0 and inner.weight_decay: 0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> SyntheticTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                                const TrainerFiles& files) {
  RETURN_IF_ERROR(core::ValidateManifest(core::SyntheticManifest(config.synthetic)));
  if (config.synthetic.apply == core::SyntheticApply::kOnSend) RETURN_IF_ERROR(CheckCanPutOff(config));
  return std::unique_ptr<Trainer>(new SyntheticTrainer(config, site, files));
}

SyntheticTrainer::SyntheticTrainer(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files)
    : config_(config),
      site_(site),
      world_(files.ranks.world()),
      manifest_(core::SyntheticManifest(config.synthetic)),
      tensors_(HeldTensors::Everywhere(manifest_, files.ranks)),
      rate_(config) {
  const auto amplitude = config.synthetic.gradient_by_site.find(site);
  if (amplitude != config.synthetic.gradient_by_site.end()) amplitude_ = amplitude->second;
  for (int i = 0; i < parameters_.size(); ++i) {
    if (config.synthetic.seeded_init) {
      FillNormal(config.seed, manifest_[i].name, 0.02, parameters_[i]);
    } else {
      std::ranges::fill(parameters_[i], config.synthetic.tensors[i].init);
    }
  }
  if (PutsOff()) return;
  optimizer_ = std::make_unique<HostOptimizer>(config, manifest_, parameters_, tensors_->own().gradients, bus(),
                                               files.calibration_path, files.ranks);
  update_.emplace(config, *tensors_, *optimizer_, files.ranks);
}

absl::StatusOr<StepResult> SyntheticTrainer::Step(core::Step t) {
  const core::Clock::TimePoint end = core::SystemClock().Now() + std::chrono::milliseconds(config_.synthetic.step_ms);
  StepResult result{.loss = std::numeric_limits<double>::quiet_NaN(), .tokens = config_.BatchRows(site_, world_)};
  if (PutsOff()) {
    RETURN_IF_ERROR(PutOff(t));  // all ranks have the same constant gradient
  } else {
    ASSIGN_OR_RETURN(result, Apply(t));
  }
  core::SleepUntil(end);
  return result;
}

absl::StatusOr<StepResult> SyntheticTrainer::Apply(core::Step t) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  update_->Begin();
  FillGradients(t);
  const double compute_s = core::SystemClock().SecondsSince(begin);
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps,
                   update_->Finish(t, {.loss = std::numeric_limits<double>::quiet_NaN(),
                                       .compute_s = compute_s,
                                       .tokens = config_.BatchRows(site_, world_) / world_}));
  return ResultOf(steps);
}

absl::Status SyntheticTrainer::PutOff(core::Step t) {
  RETURN_IF_ERROR(CheckFinite(manifest_[0], std::span(&amplitude_, 1), t));
  taken_.resize(manifest_.size());
  put_off_.push_back(rate().At(t));
  for (const int64_t least = *std::ranges::min_element(taken_); forgotten_ < least; ++forgotten_) put_off_.pop_front();
  return absl::OkStatus();
}

void SyntheticTrainer::CatchUp(int tensor) {
  if (put_off_.empty()) return;
  const int64_t all = forgotten_ + std::ssize(put_off_);
  double lr = 0;
  for (int64_t i = taken_[tensor]; i < all; ++i) lr += put_off_[i - forgotten_];
  if (std::exchange(taken_[tensor], all) == all) return;
  bus().BeginUpdate();
  bus().AwaitCopied({0, std::ssize(parameters_.Flat())});
  const std::span<float> values = parameters_[tensor];
  const std::vector<float> gradient(std::min<size_t>(values.size(), 1 << 14), amplitude_);
  for (size_t first = 0; first < values.size(); first += gradient.size()) {
    const size_t count = std::min(gradient.size(), values.size() - first);
    offload::SgdStep({.lr = lr}, std::span(gradient).first(count), values.subspan(first, count));
  }
  bus().EndUpdate();
}

absl::StatusOr<formats::FileDigest> SyntheticTrainer::Save(const std::string& path) {
  for (int i = 0; i < parameters_.size(); ++i) CatchUp(i);
  return SaveTrainer(path, manifest_, parameters_, optimizer_.get());
}

absl::Status SyntheticTrainer::Load(const std::string& path) {
  return LoadTrainer(path, manifest_, parameters_, optimizer_.get());
}

void SyntheticTrainer::FillGradients(core::Step t) {
  uint64_t site = core::HashCombine(config_.seed, site_);
  if (update_->rank() > 0) site = core::HashCombine(site, update_->rank());
  TensorValues& gradients = tensors_->own().gradients;
  for (int i = gradients.size() - 1; i >= 0; --i) {  // as backward does
    const std::span<float> gradient = gradients[i];
    if (config_.synthetic.gradient == core::SyntheticGradient::kConstant) {
      std::ranges::fill(gradient, amplitude_ * update_->scale());
      update_->Final(i);
      continue;
    }
    const uint64_t stream = core::HashCombine(core::HashCombine(site, static_cast<uint64_t>(i)), t);
    for (size_t j = 0; j < gradient.size(); ++j) {
      gradient[j] = amplitude_ * static_cast<float>(2 * core::UnitInterval(core::HashCombine(stream, j)) - 1);
      if (world_ > 1) gradient[j] *= update_->scale();
    }
    update_->Final(i);
  }
}

}  // namespace causeway::worker
