#include "worker/parallel/llama_trainer.h"

#include <utility>

#include "core/check.h"
#include "core/model_manifest.h"
#include "worker/optimizer/trainer_file.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<Trainer>> LlamaTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                            const TrainerFiles& files) {
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  std::unique_ptr<LlamaTrainer> trainer(new LlamaTrainer(config, files, std::move(data)));
  RETURN_IF_ERROR(trainer->data_.Initialize(trainer->manifest_, trainer->parameters_));
  return trainer;
}

LlamaTrainer::LlamaTrainer(const core::RunConfig& config, const TrainerFiles& files, LlamaData data)
    : data_(std::move(data)),
      manifest_(core::LlamaManifest(config.llama)),
      parameters_(manifest_),
      gradients_(manifest_),
      micro_batches_(config.inner.micro_batches),
      model_(config.llama, data_.rows() / micro_batches_, config.sequence_length(), LlamaModel::Use::kTraining),
      update_(config, manifest_, parameters_, bus(), files.calibration_path, files.ranks) {}

absl::StatusOr<StepResult> LlamaTrainer::Step(core::Step t) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  ASSIGN_OR_RETURN(const Batch batch, data_.BatchAt(t));
  const Tensors weights = parameters_.View();
  gradients_.Clear();
  update_.Begin(gradients_);
  double loss = 0;
  for (int64_t i = 0; i < micro_batches_; ++i) {
    const Batch part = Part(batch, i, micro_batches_);
    loss += model_.Forward(weights, part) / static_cast<double>(micro_batches_);
    const bool last = i + 1 == micro_batches_;
    model_.Backward(weights, part, gradients_.MutableView(), update_.scale() / static_cast<float>(micro_batches_),
                    last ? LlamaModel::OnFinal([this](int tensor) { update_.FinalFrom(tensor); }) : nullptr, last);
  }
  const double compute_s = core::SystemClock().SecondsSince(begin);
  ASSIGN_OR_RETURN(
      const std::vector<RankStep> steps,
      update_.Finish(t, {.loss = loss, .compute_s = compute_s, .tokens = static_cast<int64_t>(batch.tokens.size())}));
  return ResultOf(steps);
}

absl::StatusOr<formats::FileDigest> LlamaTrainer::Save(const std::string& path) {
  return SaveTrainer(path, manifest_, parameters_, &update_.optimizer());
}

absl::Status LlamaTrainer::Load(const std::string& path) {
  return LoadTrainer(path, manifest_, parameters_, &update_.optimizer());
}

}  // namespace causeway::worker
