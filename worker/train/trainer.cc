#include "worker/train/trainer.h"

#include "worker/train/llama_trainer.h"
#include "worker/train/synthetic.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const core::RunConfig& config, const core::SiteId& site,
                                                     const TrainerFiles& files) {
  if (config.model_kind == core::ModelKind::kSynthetic) return SyntheticTrainer::Make(config, site, files);
  return LlamaTrainer::Make(config, site, files);
}

}  // namespace causeway::worker
