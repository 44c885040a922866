// A site of several ranks, as threads, that trains the quickstart's model on a text: by AdamW, by 1-bit Adam, or by
// AdamW on gradients that were averaged at one bit with error feedback (`naive`), which shows why 1-bit Adam freezes
// the variance first. Prints a line of JSON: held-out loss at the end, and the bytes that a rank sent in its last step.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "core/thread.h"
#include "worker/ranks/ordered_collectives.h"
#include "worker/ranks/thread_wire.h"
#include "worker/train/corpus.h"
#include "worker/train/evaluation.h"
#include "worker/train/inner_optimizer.h"
#include "worker/train/llama_model.h"
#include "worker/train/momentum_exchange.h"
#include "worker/train/site_batches.h"
#include "worker/train/trainer.h"

ABSL_FLAG(std::string, optimizer, "adamw", "adamw, onebit_adam or naive");
ABSL_FLAG(std::string, data, "", "text file");
ABSL_FLAG(int, ranks, 4, "ranks of the site");
ABSL_FLAG(int64_t, steps, 600, "steps");
ABSL_FLAG(int64_t, freeze_at, causeway::core::kAutoFreeze, "the last step that changes the variance; -1: auto");
ABSL_FLAG(double, clip, 1.0, "largest gradient norm; 0: off");
ABSL_FLAG(double, beta2, 0.99, "of Adam");
ABSL_FLAG(double, lr, 3e-3, "rate");
ABSL_FLAG(int64_t, seed, 1, "of parameters and data");
ABSL_FLAG(int64_t, say_every, 0, "steps from one line of loss, on stderr, to the next; 0: none");

namespace causeway::worker {
namespace {

core::RunConfig Run(const std::string& optimizer) {
  core::RunConfig config;
  config.seed = absl::GetFlag(FLAGS_seed);
  config.steps = absl::GetFlag(FLAGS_steps);
  config.model_kind = core::ModelKind::kLlama;
  config.llama = {.hidden_size = 128,
                  .intermediate_size = 344,
                  .num_hidden_layers = 4,
                  .num_attention_heads = 4,
                  .num_key_value_heads = 4,
                  .vocab_size = 256,
                  .max_position_embeddings = 64};
  if (optimizer == "onebit_adam") config.inner.optimizer = core::InnerOptimizerKind::kOnebitAdam;
  config.inner.freeze_at = absl::GetFlag(FLAGS_freeze_at);
  config.inner.clip = absl::GetFlag(FLAGS_clip);
  config.inner.beta2 = absl::GetFlag(FLAGS_beta2);
  config.inner.lr = absl::GetFlag(FLAGS_lr);
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
        optimizer_(config, manifest_, parameters_, bus_) {
    InitializeLlama(config.llama, config.seed, parameters_);
  }

  double Step(core::Step t) {
    const Batch batch = batches_.BatchAt(t, rank_, world_);
    gradients_.Clear();
    const double loss = model_.Forward(parameters_.View(), batch);
    model_.Backward(parameters_.View(), batch, gradients_.MutableView());
    exchange_.Begin(gradients_.Flat());
    CHECK(exchange_.Finish().ok());
    const auto squares = optimizer_.SumOfSquares(t, gradients_);
    CHECK(squares.ok() && optimizer_.Step(t, gradients_, *squares).ok());
    return loss;
  }
  std::span<float> tensor(int i) { return parameters_[i]; }
  const core::Manifest& manifest() const { return manifest_; }

 private:
  SiteBatches batches_;
  const int rank_, world_;
  core::Manifest manifest_;
  TensorValues parameters_, gradients_;
  const std::vector<float> everywhere_;  // in place of a variance: no value is left out
  LlamaModel model_;
  MomentumExchange exchange_;
  offload::BusSchedule bus_;
  InnerOptimizer optimizer_;
};

template <typename Trainer>
Tensors Weights(Trainer& trainer) {
  Tensors weights;
  for (size_t i = 0; i < trainer.manifest().size(); ++i) weights.push_back(trainer.tensor(static_cast<int>(i)));
  return weights;
}

void Say(core::Step t, double loss, const core::RankProgress& progress) {
  const int64_t every = absl::GetFlag(FLAGS_say_every);
  if (every == 0 || t % every != 0) return;
  std::fprintf(stderr, "step %ld: loss %.4f, frozen at %ld, ratio %.3f\n", static_cast<long>(t), loss,
               static_cast<long>(progress.onebit_adam ? progress.onebit_adam->frozen_at : 0),
               progress.onebit_adam ? progress.onebit_adam->ratio : 0);
}

void Main() {
  const std::string kind = absl::GetFlag(FLAGS_optimizer);
  const core::RunConfig config = Run(kind);
  const auto opened = Corpus::Open(absl::GetFlag(FLAGS_data), {config.llama.vocab_size}, config.sequence_length(),
                                   config.eval.held_out, core::DataMode::kOwn);
  if (!opened.ok()) {
    std::fprintf(stderr, "onebit_run: %s\n", std::string(opened.status().message()).c_str());
    std::exit(2);
  }
  const std::shared_ptr<const Corpus> corpus = *opened;
  const int world = absl::GetFlag(FLAGS_ranks);
  ThreadRanks wires(world);
  std::vector<core::Thread> threads;
  double eval_loss = 0;
  int64_t frozen_at = 0, step_bytes = 0, values = 0;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      OrderedCollectives collectives(wires.wire(rank));
      const TrainerRanks ranks{.values = &collectives};
      const auto finish = [&](auto& trainer, const core::RankProgress& progress, int64_t sent_before_last) {
        const absl::Status met = collectives.Await(collectives.Barrier(), TimeoutOf(600));
        CHECK(met.ok());
        if (rank > 0) return;
        Evaluator evaluator(config.llama, corpus, config.eval.batches, config.inner.batch_size);
        eval_loss = evaluator.Loss(Weights(trainer));
        frozen_at = progress.onebit_adam ? progress.onebit_adam->frozen_at : 0;
        step_bytes = collectives.sent_bytes() - sent_before_last;
        values = core::NumParameters(trainer.manifest());
      };
      if (kind == "naive") {
        NaiveTrainer trainer(config, corpus, ranks);
        int64_t sent = 0;
        for (core::Step t = 1; t <= config.steps; ++t) {
          sent = collectives.sent_bytes();
          const double loss = trainer.Step(t);
          if (rank == 0) Say(t, loss, {});
        }
        return finish(trainer, {}, sent);
      }
      auto trainer = MakeTrainer(config, "site", {.data_path = absl::GetFlag(FLAGS_data), .ranks = ranks});
      CHECK(trainer.ok());
      int64_t sent = 0;
      for (core::Step t = 1; t <= config.steps; ++t) {
        sent = collectives.sent_bytes();
        const auto result = (*trainer)->Step(t);
        CHECK(result.ok());
        if (rank == 0) Say(t, result->loss, (*trainer)->rank_progress());
      }
      finish(**trainer, (*trainer)->rank_progress(), sent);
    });
  }
  for (core::Thread& thread : threads) thread.Join();
  const double bfloat16 = 2.0 * (world - 1) / world * static_cast<double>(values) * 2;
  std::printf(
      "{\"optimizer\": \"%s\", \"ranks\": %d, \"steps\": %ld, \"parameters\": %ld, \"frozen_at\": %ld, "
      "\"eval_loss\": %.5f, \"step_bytes\": %ld, \"of_bfloat16\": %.5f}\n",
      kind.c_str(), world, static_cast<long>(config.steps), static_cast<long>(values), static_cast<long>(frozen_at),
      eval_loss, static_cast<long>(step_bytes), static_cast<double>(step_bytes) / bfloat16);
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  causeway::worker::Main();
  return 0;
}
