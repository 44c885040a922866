// A Llama's training data and initial values, on any device: the text, the batches of this rank, initial values.
//
//   --data ─► Corpus ─► SiteBatches ─► BatchAt(t)           model.init_from or the run's seed ─► Initialize
//
// One owner thread; the evaluator shares only the text, which does not change.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/corpus.h"
#include "worker/data/site_batches.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

class LlamaData {
 public:
  // INVALID_ARGUMENT and others: as MakeTrainer.
  static absl::StatusOr<LlamaData> Open(const core::RunConfig& config, const core::SiteId& site,
                                        const TrainerFiles& files);

  int64_t rows() const { return batch_rows_ / world_; }  // rows of a step on this rank
  absl::StatusOr<Batch> BatchAt(core::Step t) const;
  void SetSites(const std::vector<core::SiteId>& names);
  const core::SiteData& facts() const { return facts_; }
  std::unique_ptr<Evaluator> NewEvaluator() const;  // on the processor; null: the run holds nothing out
  HeldOut held_out() const;                         // the windows; without a corpus where the run holds nothing out

  // Fills the parameters. Where model.init_from is not on this machine they stay zero, and initial_values() says so.
  absl::Status Initialize(const core::Manifest& manifest, TensorValues& parameters);
  const absl::Status& initial_values() const { return initial_values_; }

 private:
  LlamaData(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files,
            std::shared_ptr<const Corpus> corpus, std::shared_ptr<const Corpus> held_out);

  core::RunConfig config_;
  core::SiteId site_;
  std::shared_ptr<const Corpus> corpus_;
  std::shared_ptr<const Corpus> held_out_;  // for evaluation: the same, or a separate file
  core::SiteData facts_;
  int rank_, world_;
  int64_t batch_rows_;  // rows of the whole site's batch
  SiteBatches batches_;
  absl::Status data_status_;     // the result of the last SetSites
  absl::Status initial_values_;  // OK, or why there are none
};

}  // namespace causeway::worker
