#include "worker/train/llama_trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "formats/model_directory.h"
#include "worker/train/trainer_file.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<Trainer>> LlamaTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                            const TrainerFiles& files) {
  if (files.data_path.empty()) return absl::InvalidArgumentError("a llama model: expected --data=PATH, got none");
  const core::LlamaConfig& llama = config.llama;
  const formats::TokenFormat format{llama.vocab_size, config.data.token_bytes};
  const bool own = config.data.mode == core::DataMode::kOwn;
  const bool own_held_out = !files.held_out_path.empty();
  if (own_held_out && !own) {
    return absl::InvalidArgumentError(
        "--held_out: expected none, since in data.mode shared all sites evaluate on the tail of the run's data; got " +
        files.held_out_path);
  }
  const double tail = own_held_out ? 0 : config.eval.held_out;
  ASSIGN_OR_RETURN(std::shared_ptr<const Corpus> corpus,
                   Corpus::Open(files.data_path, format, config.sequence_length(), tail, config.data.mode));
  std::shared_ptr<const Corpus> held_out = corpus;
  if (own_held_out) {
    ASSIGN_OR_RETURN(held_out, Corpus::OpenHeldOut(files.held_out_path, format, config.sequence_length()));
  }
  std::unique_ptr<LlamaTrainer> trainer(new LlamaTrainer(config, site, files, std::move(corpus), std::move(held_out)));
  if (llama.init_from.empty()) {
    InitializeLlama(llama, config.seed, trainer->parameters_);
  } else if (formats::HasModel(llama.init_from)) {
    RETURN_IF_ERROR(
        formats::ReadModelDirectory(llama.init_from, trainer->manifest_, trainer->parameters_.MutableView()));
  } else {
    trainer->initial_values_ = absl::FailedPreconditionError(
        absl::StrCat("model.init_from: expected model.safetensors or model.safetensors.index.json in ", llama.init_from,
                     " on the site that is asked for the initial parameters, got none on ", site,
                     ": start a site that has the folder first, then this one again"));
  }
  return trainer;
}

LlamaTrainer::LlamaTrainer(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files,
                           std::shared_ptr<const Corpus> corpus, std::shared_ptr<const Corpus> held_out)
    : config_(config),
      corpus_(std::move(corpus)),
      held_out_(std::move(held_out)),
      batch_rows_(config.BatchRows(site, files.ranks.world())),
      batches_(corpus_, config.seed, site, batch_rows_),
      manifest_(core::LlamaManifest(config.llama)),
      parameters_(manifest_),
      gradients_(manifest_),
      model_(config.llama, batch_rows_ / files.ranks.world(), config.sequence_length(), LlamaModel::Use::kTraining),
      update_(config, manifest_, parameters_, bus(), files.calibration_path, files.ranks) {
  data_.training = corpus_->tokens().Fingerprint();
  if (held_out_ != corpus_) data_.held_out = held_out_->tokens().Fingerprint();
}

void LlamaTrainer::SetSites(const std::vector<core::SiteId>& names) {
  if (config_.data.mode == core::DataMode::kShared) data_status_ = batches_.SetSites(names);
}

absl::StatusOr<StepResult> LlamaTrainer::Step(core::Step t) {
  RETURN_IF_ERROR(data_status_);
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  const Batch batch = batches_.BatchAt(t, update_.rank(), update_.world());
  const Tensors weights = parameters_.View();
  gradients_.Clear();
  const double loss = model_.Forward(weights, batch);
  update_.Begin(gradients_);
  model_.Backward(weights, batch, gradients_.MutableView(), update_.scale(),
                  [this](int tensor) { update_.FinalFrom(tensor); });
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

std::unique_ptr<Evaluator> LlamaTrainer::NewEvaluator() const {
  if (held_out_->held_out().size() == 0) return nullptr;
  return std::make_unique<Evaluator>(config_.llama, held_out_, config_.eval.batches, config_.inner.batch_size);
}

}  // namespace causeway::worker
