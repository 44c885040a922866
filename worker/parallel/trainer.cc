#include "worker/parallel/trainer.h"

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/parallel/llama_trainer.h"
#include "worker/parallel/synthetic.h"

namespace causeway::worker {

StepResult ResultOf(const std::vector<RankStep>& ranks) {
  StepResult result;
  for (const RankStep& rank : ranks) {
    result.tokens += rank.tokens;
    result.loss += rank.loss / static_cast<double>(ranks.size());
  }
  return result;
}

absl::Status CheckRows(const core::RunConfig& config, const core::SiteId& site, int world) {
  const int64_t rows = config.BatchRows(site, world), parts = config.inner.micro_batches;
  if (rows % world == 0 && rows / world % parts == 0) return absl::OkStatus();
  if (rows % world == 0) {
    return absl::InvalidArgumentError(absl::StrCat("inner.micro_batches: expected to divide the ", rows / world,
                                                   " rows of a rank of site ", site, ", got ", parts));
  }
  return absl::InvalidArgumentError(absl::StrCat("inner.batch_size or inner.batch_by_site.", site,
                                                 ": expected a multiple of the site's ", world, " ranks, got ", rows,
                                                 " rows"));
}

absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const core::RunConfig& config, const core::SiteId& site,
                                                     const TrainerFiles& files) {
  if (config.model_kind == core::ModelKind::kSynthetic && files.pipeline_path.empty()) {
    RETURN_IF_ERROR(CheckRows(config, site, files.ranks.world()));
    return SyntheticTrainer::Make(config, site, files);
  }
  return LlamaTrainer::Make(config, site, files);
}

}  // namespace causeway::worker
