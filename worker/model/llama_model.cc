#include "worker/model/llama_model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/model_manifest.h"

namespace causeway::worker {
namespace {

bool EndsInResidualStream(const core::TensorSpec& spec) {
  return spec.name.ends_with("o_proj.weight") || spec.name.ends_with("down_proj.weight");
}

}  // namespace

void InitializeLlama(const core::LlamaConfig& config, uint64_t seed, TensorValues& parameters) {
  InitializeLlama(config, core::LlamaManifest(config), seed, parameters);
}

void InitializeLlama(const core::LlamaConfig& config, const core::Manifest& manifest, uint64_t seed,
                     TensorValues& parameters) {
  core::ThreadTeam team(UpdateThreads(std::ssize(parameters.Flat())));
  for (int i = 0; i < parameters.size(); ++i) {
    if (manifest[i].kind == core::TensorKind::kNorm) {
      std::ranges::fill(parameters[i], 1.0f);
      continue;
    }
    const double depth = EndsInResidualStream(manifest[i]) ? 2.0 * static_cast<double>(config.num_hidden_layers) : 1.0;
    FillNormal(seed, manifest[i].name, 0.02 / std::sqrt(depth), parameters[i], team);
  }
}

LlamaModel::LlamaModel(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, Use use)
    : stage_(config, batch_rows, sequence, StageRange::Whole(config)),
      blocks_(use == Use::kTraining ? config.num_hidden_layers : 1, BlockActivations(stage_.shape())) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    kept_.blocks.push_back(&blocks_[blocks_.size() == 1 ? 0 : layer]);
  }
  stage_.Prepare(kept_);
  if (use == Use::kForwardOnly) return;
  scratch_.emplace_back(stage_.shape());
  below_.resize(kept_.output.size());
  if (config.tie_word_embeddings) tied_head_.resize(static_cast<size_t>(config.vocab_size * config.hidden_size));
}

double LlamaModel::Forward(const Tensors& weights, const Batch& batch) {
  return stage_.Forward(weights, batch, {}, kept_, {});
}

void LlamaModel::Backward(const Tensors& weights, const Batch& batch, const MutableTensors& gradients, float scale,
                          const OnFinal& on_final, bool last) {
  CHECK(!scratch_.empty());
  MutableTensors with_head = gradients;
  if (!tied_head_.empty()) with_head.emplace_back(tied_head_);
  const OnFinal final = [&](int tensor) {
    if (tensor == 0 && last) AddTiedHead(tied_head_, gradients[0]);
    if (on_final != nullptr) on_final(tensor);
  };
  stage_.Backward(weights, batch, scale, {}, kept_, scratch_[0], below_, with_head, {}, final);
}

}  // namespace causeway::worker
