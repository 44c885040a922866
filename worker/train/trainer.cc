#include "worker/train/trainer.h"

#include "absl/strings/str_cat.h"
#include "worker/train/llama_trainer.h"
#include "worker/train/synthetic.h"

namespace causeway::worker {

StepResult ResultOf(const std::vector<RankStep>& ranks) {
  StepResult result;
  for (const RankStep& rank : ranks) {
    result.tokens += rank.tokens;
    result.loss += rank.loss / static_cast<double>(ranks.size());
  }
  return result;
}

absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const core::RunConfig& config, const core::SiteId& site,
                                                     const TrainerFiles& files) {
  const int world = files.ranks.world();
  if (const int64_t rows = config.BatchRows(site, world); rows % world != 0) {
    return absl::InvalidArgumentError(absl::StrCat("inner.batch_size or inner.batch_by_site.", site,
                                                   ": expected a multiple of the site's ", world, " ranks, got ", rows,
                                                   " rows"));
  }
  if (config.model_kind == core::ModelKind::kSynthetic) return SyntheticTrainer::Make(config, site, files);
  return LlamaTrainer::Make(config, site, files);
}

}  // namespace causeway::worker
