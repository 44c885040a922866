#include "worker/train/llama_trainer.h"

#include <utility>

#include "core/check.h"
#include "core/model_manifest.h"
#include "formats/model_directory.h"
#include "worker/train/trainer_file.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<Trainer>> LlamaTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                            const TrainerFiles& files) {
  if (files.data_path.empty()) return absl::InvalidArgumentError("a llama model: expected --data=PATH, got none");
  const core::LlamaConfig& llama = config.llama;
  ASSIGN_OR_RETURN(
      std::shared_ptr<const Corpus> corpus,
      Corpus::Open(files.data_path, {llama.vocab_size}, llama.max_position_embeddings, config.eval.held_out));
  std::unique_ptr<LlamaTrainer> trainer(new LlamaTrainer(config, site, files, std::move(corpus)));
  if (llama.init_from.empty()) {
    InitializeLlama(llama, config.seed, trainer->parameters_);
  } else {
    RETURN_IF_ERROR(
        formats::ReadModelDirectory(llama.init_from, trainer->manifest_, trainer->parameters_.MutableView()));
  }
  return trainer;
}

LlamaTrainer::LlamaTrainer(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files,
                           std::shared_ptr<const Corpus> corpus)
    : config_(config),
      corpus_(std::move(corpus)),
      batches_(corpus_, config.seed, site, config.inner.batch_size),
      manifest_(core::LlamaManifest(config.llama)),
      parameters_(manifest_),
      gradients_(manifest_),
      model_(config.llama, config.inner.batch_size, LlamaModel::Use::kTraining),
      optimizer_(config, manifest_, parameters_, bus(), files.calibration_path) {}

absl::StatusOr<StepResult> LlamaTrainer::Step(core::Step t) {
  RETURN_IF_ERROR(data_status_);
  const Batch batch = batches_.BatchAt(t);
  const Tensors weights = parameters_.View();
  gradients_.Clear();
  const double loss = model_.Forward(weights, batch);
  model_.Backward(weights, batch, gradients_.MutableView());
  RETURN_IF_ERROR(optimizer_.Step(t, gradients_));
  return StepResult{.loss = loss, .tokens = static_cast<int64_t>(batch.tokens.size())};
}

absl::Status LlamaTrainer::Save(const std::string& path) {
  return SaveTrainer(path, manifest_, parameters_, &optimizer_);
}

absl::Status LlamaTrainer::Load(const std::string& path) {
  return LoadTrainer(path, manifest_, parameters_, &optimizer_);
}

std::unique_ptr<Evaluator> LlamaTrainer::NewEvaluator() const {
  if (corpus_->held_out().size() == 0) return nullptr;
  return std::make_unique<Evaluator>(config_.llama, corpus_, config_.eval.batches, config_.inner.batch_size);
}

}  // namespace causeway::worker
