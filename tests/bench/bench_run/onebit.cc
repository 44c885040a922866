// A site of several ranks, as threads, that trains the quickstart's model on a text: by AdamW, by 1-bit Adam, or by
// AdamW on gradients that were averaged at one bit with error feedback (`naive`), which shows why 1-bit Adam freezes
// the variance first. Prints a line of JSON: held-out loss at the end, and the bytes that a rank sent in its last step.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "core/thread.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/worker/optimizer/sum_of_squares.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/data/corpus.h"
#include "worker/data/evaluation.h"
#include "worker/data/site_batches.h"
#include "worker/model/llama_model.h"
#include "worker/optimizer/host_optimizer.h"
#include "worker/optimizer/momentum_exchange.h"
#include "worker/parallel/trainer.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {
namespace {

core::RunConfig Run(const std::string& optimizer) {
  core::RunConfig config;
  config.seed = bench::Given<int64_t>("seed");
  config.steps = bench::Given<int64_t>("steps");
  config.model_kind = core::ModelKind::kLlama;
  config.llama = {.hidden_size = 128,
                  .intermediate_size = 344,
                  .num_hidden_layers = 4,
                  .num_attention_heads = 4,
                  .num_key_value_heads = 4,
                  .vocab_size = 256,
                  .max_position_embeddings = 64};
  if (optimizer == "onebit_adam") config.inner.optimizer = core::InnerOptimizerKind::kOnebitAdam;
  config.inner.onebit.freeze_at = bench::Given<int64_t>("freeze_at");
  if (bench::Given<std::string>("warmup_codec") == "bfloat16")
    config.inner.onebit.warmup_codec = core::DType::kBfloat16;
  config.inner.clip = bench::Given<double>("clip");
  config.inner.beta2 = bench::Given<double>("beta2");
  config.inner.lr = bench::Given<double>("lr");
  return config;
}

// AdamW on gradients that cross at one bit.
class NaiveTrainer {
 public:
  NaiveTrainer(const core::RunConfig& config, std::shared_ptr<const Corpus> corpus, TrainerRanks ranks)
      : batches_(std::move(corpus), config.seed, "site", config.inner.batch_size),
        rank_(ranks.rank()),
        world_(ranks.world()),
        manifest_(core::LlamaManifest(config.llama)),
        parameters_(manifest_),
        gradients_(manifest_),
        everywhere_(gradients_.Flat().size(), 1.0f),
        model_(config.llama, config.inner.batch_size / world_, config.sequence_length(), LlamaModel::Use::kTraining),
        exchange_(manifest_, ranks, everywhere_),
        optimizer_(config, manifest_, parameters_, gradients_, bus_) {
    InitializeLlama(config.llama, config.seed, parameters_);
  }

  double Step(core::Step t) {
    const Batch batch = batches_.BatchAt(t, rank_, world_);
    gradients_.Clear();
    const double loss = model_.Forward(parameters_.View(), batch);
    model_.Backward(parameters_.View(), batch, gradients_.MutableView());
    exchange_.Begin(gradients_.Flat());
    CHECK(exchange_.Finish().ok());
    const auto squares = SumOfSquares(t, manifest_, gradients_);
    CHECK(squares.ok() && optimizer_.Step(t, *squares).ok());
    return loss;
  }
  Tensors Weights() const { return parameters_.View(); }
  core::RankProgress progress() const { return {}; }
  void Keep(const std::string&) { CHECK(false); }
  void Restore(const std::string&) {}

 private:
  SiteBatches batches_;
  const int rank_, world_;
  core::Manifest manifest_;
  TensorValues parameters_, gradients_;
  const std::vector<float> everywhere_;  // in place of a variance: no value is left out
  LlamaModel model_;
  MomentumExchange exchange_;
  offload::BusSchedule bus_;
  HostOptimizer optimizer_;
};

// The trainer of causeway-worker.
class SiteTrainer {
 public:
  SiteTrainer(const core::RunConfig& config, const TrainerRanks& ranks) : leads_(ranks.rank() == 0) {
    auto made = MakeTrainer(config, "site", {.data_path = bench::Given<std::string>("data"), .ranks = ranks});
    CHECK(made.ok());
    trainer_ = *std::move(made);
  }

  double Step(core::Step t) {
    const auto result = trainer_->Step(t);
    CHECK(result.ok());
    return result->loss;
  }
  Tensors Weights() const {
    Tensors weights;
    for (size_t i = 0; i < trainer_->manifest().size(); ++i) weights.push_back(trainer_->tensor(static_cast<int>(i)));
    return weights;
  }
  core::RankProgress progress() const { return trainer_->rank_progress(); }
  void Keep(const std::string& file) {
    CHECK(trainer_->GatherState().ok());
    if (leads_) CHECK(trainer_->Save(file).ok());
  }
  void Restore(const std::string& file) { CHECK(trainer_->Load(file).ok()); }

 private:
  const bool leads_;
  std::unique_ptr<Trainer> trainer_;
};

void Say(core::Step t, double loss, const core::RankProgress& progress) {
  const int64_t every = bench::Given<int64_t>("say_every");
  if (every == 0 || t % every != 0) return;
  std::fprintf(stderr, "step %ld: loss %.4f, frozen at %ld, ratio %.3f\n", static_cast<long>(t), loss,
               static_cast<long>(progress.onebit_adam ? progress.onebit_adam->frozen_at : 0),
               progress.onebit_adam ? progress.onebit_adam->ratio : 0);
}

struct Result {
  double eval_loss = 0;
  int64_t frozen_at = 0;
  int64_t step_bytes = 0;  // that a rank sent in the last step
  int64_t run_bytes = 0;   // and from `first` on
};

// Steps first to last, on one rank. A trainer that begins later than at 1 goes on from `file`; one that ends early
// leaves its state there.
template <typename AnyTrainer>
void Train(AnyTrainer& trainer, core::Step first, core::Step last, const std::string& file, Collectives& collectives,
           const std::shared_ptr<const Corpus>& corpus, const core::RunConfig& config, Result& result) {
  if (first > 1) trainer.Restore(file);
  const bool leads = collectives.rank() == 0;
  const int64_t begin = collectives.sent_bytes();
  int64_t sent = 0;
  for (core::Step t = first; t <= last; ++t) {
    sent = collectives.sent_bytes();
    const double loss = trainer.Step(t);
    if (leads) Say(t, loss, trainer.progress());
  }
  const int64_t end = collectives.sent_bytes();
  if (last < config.steps) trainer.Keep(file);
  CHECK(collectives.Await(collectives.Barrier(), TimeoutOf(600)).ok());
  if (!leads) return;
  const core::RankProgress progress = trainer.progress();
  HostEvaluator evaluator(config.llama, {corpus, config.eval.batches * config.inner.batch_size},
                          config.inner.batch_size);
  result = {.eval_loss = *evaluator.Loss(trainer.Weights()),
            .frozen_at = progress.onebit_adam ? progress.onebit_adam->frozen_at : 0,
            .step_bytes = end - sent,
            .run_bytes = end - begin};
}

Result TrainOnRanks(int world, core::Step first, core::Step last, const std::string& file,
                    const std::shared_ptr<const Corpus>& corpus, const core::RunConfig& config) {
  ThreadRanks wires(world);
  Result result;
  std::vector<core::Thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      OrderedCollectives collectives(wires.wire(rank));
      const TrainerRanks ranks{.values = &collectives};
      if (bench::Given<std::string>("optimizer") == "naive") {
        NaiveTrainer trainer(config, corpus, ranks);
        Train(trainer, first, last, file, collectives, corpus, config, result);
      } else {
        SiteTrainer trainer(config, ranks);
        Train(trainer, first, last, file, collectives, corpus, config, result);
      }
    });
  }
  for (core::Thread& thread : threads) thread.Join();
  return result;
}

absl::Status Main() {
  const std::string kind = bench::Given<std::string>("optimizer");
  const core::RunConfig config = Run(kind);
  const auto corpus = Corpus::Open(bench::Given<std::string>("data"), {config.llama.vocab_size},
                                   config.sequence_length(), config.eval.held_out, core::DataMode::kOwn);
  RETURN_IF_ERROR(corpus.status());
  int world = bench::Given<int>("ranks");
  Result result;
  const int then = bench::Given<int>("then_ranks");
  if (then > 0) {
    const std::string file = std::filesystem::temp_directory_path() / absl::StrCat("onebit-run-", getpid());
    TrainOnRanks(world, 1, config.steps / 2, file, *corpus, config);
    world = then;
    result = TrainOnRanks(world, config.steps / 2 + 1, config.steps, file, *corpus, config);
    std::filesystem::remove(file);
  } else {
    result = TrainOnRanks(world, 1, config.steps, "", *corpus, config);
  }
  const int64_t values = core::NumParameters(core::LlamaManifest(config.llama));
  const double bfloat16 = 2.0 * (world - 1) / world * static_cast<double>(values) * 2;
  bench::Print({{"optimizer", kind},
                {"ranks", bench::Given<int>("ranks")},
                {"then_ranks", bench::Given<int>("then_ranks")},
                {"steps", config.steps},
                {"parameters", values},
                {"frozen_at", result.frozen_at},
                {"eval_loss", result.eval_loss},
                {"step_bytes", result.step_bytes},
                {"of_bfloat16", static_cast<double>(result.step_bytes) / bfloat16},
                {"warmup_codec", bench::Given<std::string>("warmup_codec")},
                {"freeze_at", bench::Given<int64_t>("freeze_at")},
                {"run_of_bfloat16", static_cast<double>(result.run_bytes) /
                                        (bfloat16 * static_cast<double>(then > 0 ? config.steps / 2 : config.steps))}});
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

namespace causeway::bench {
absl::Status OnebitAdam() { return worker::Main(); }
}  // namespace causeway::bench
