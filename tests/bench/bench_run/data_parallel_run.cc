// RunDataParallel: what all sites would come to if they exchanged gradients at every step.
#include <algorithm>

#include "core/check.h"
#include "core/model_manifest.h"
#include "tests/bench/bench_run/loss_curve.h"
#include "tests/bench/bench_run/quality.h"
#include "tests/worker/optimizer/sum_of_squares.h"
#include "worker/data/site_batches.h"
#include "worker/model/llama_model.h"
#include "worker/optimizer/host_optimizer.h"

namespace causeway::bench {
namespace {

// The batches of all sites, back to back: the rows that they see in a run of RunSites with the same seed.
class AllBatches {
 public:
  static absl::StatusOr<AllBatches> Make(const QualityOptions& options) {
    const core::RunConfig& config = options.config;
    ASSIGN_OR_RETURN(auto corpus,
                     worker::Corpus::Open(options.data_path, {config.llama.vocab_size, config.data.token_bytes},
                                          config.sequence_length(), config.eval.held_out));
    AllBatches all;
    const std::vector<core::SiteId> names = SiteNames(config.membership.min_sites);
    for (const core::SiteId& name : names) {
      all.sites_.emplace_back(corpus, config.seed, name, config.inner.batch_size);
      RETURN_IF_ERROR(all.sites_.back().SetSites(names));
    }
    return all;
  }

  worker::Batch At(core::Step step) const {
    worker::Batch all;
    for (const worker::SiteBatches& site : sites_) {
      const worker::Batch batch = site.BatchAt(step);
      all.tokens.insert(all.tokens.end(), batch.tokens.begin(), batch.tokens.end());
      all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
    }
    return all;
  }

 private:
  std::vector<worker::SiteBatches> sites_;
};

}  // namespace

absl::StatusOr<QualityResult> RunDataParallel(const QualityOptions& options) {
  const core::RunConfig& config = options.config;
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  worker::TensorValues parameters(manifest), gradients(manifest);
  worker::InitializeLlama(config.llama, config.seed, parameters);
  ASSIGN_OR_RETURN(const AllBatches batches, AllBatches::Make(options));
  worker::LlamaModel model(config.llama, config.membership.min_sites * config.inner.batch_size,
                           config.sequence_length(), worker::LlamaModel::Use::kTraining);
  offload::BusSchedule bus;  // no copies are made
  worker::HostOptimizer optimizer(config, manifest, parameters, gradients, bus);

  QualityResult result{.parameters = core::NumParameters(manifest)};
  result.rounds = std::max<core::Version>(1, config.steps / config.sync.sync_every);
  ASSIGN_OR_RETURN(const auto curve, LossCurve::Make(options, result.rounds));
  curve->TakeStart(parameters.View(), result);
  const core::Step tail = std::max<core::Step>(1, config.steps / 10);
  for (core::Step step = 1; step <= config.steps; ++step) {
    const worker::Batch batch = batches.At(step);
    gradients.Clear();
    const double loss = model.Forward(parameters.View(), batch);
    model.Backward(parameters.View(), batch, gradients.MutableView());
    const absl::StatusOr<double> squares = worker::SumOfSquares(step, manifest, gradients);
    const absl::Status stepped = squares.ok() ? optimizer.Step(step, *squares) : squares.status();
    if (!stepped.ok()) {
      result.diverged = true;
      result.reason = std::string(stepped.message());
      return result;
    }
    if (step > config.steps - tail) result.train_loss_end += loss / static_cast<double>(tail);
    // The last round ends with the last step.
    const core::Step left = config.steps - step;
    const core::Version round = result.rounds - left / config.sync.sync_every;
    if (left % config.sync.sync_every == 0 && curve->points().contains(round)) {
      curve->Take(round, parameters.View(), result);
    }
  }
  return result;
}

}  // namespace causeway::bench
