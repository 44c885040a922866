// A step of a Llama on the ranks of a site, as threads, over links on which the reduction of its gradients takes a
// given share of backward: alone, reduced beside backward, and reduced after it, in turns. Prints a line of JSON.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "core/thread.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/device/blas_kernels.h"
#include "worker/model/llama_model.h"
#include "worker/ranks/ordered_collectives.h"
#include "worker/ranks/rank_steps.h"

ABSL_FLAG(int, ranks, 2, "ranks of the site");
ABSL_FLAG(int64_t, layers, 12, "layers of the model");
ABSL_FLAG(int64_t, hidden, 256, "hidden size");
ABSL_FLAG(int64_t, rows, 8, "rows of each rank, of 64 tokens");
ABSL_FLAG(int64_t, buckets, 8, "equal buckets of the gradients");
ABSL_FLAG(double, share, 0.5, "how long the reduction takes, of backward");
ABSL_FLAG(int, turns, 15, "turns of the three kinds of step");

namespace causeway::worker {
namespace {

constexpr int64_t kSequence = 64;
constexpr std::chrono::minutes kTimeout{10};

enum Kind { kAlone, kBeside, kAfter };

struct Seconds {
  double step = 0;
  double backward = 0;
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

class Rank {
 public:
  explicit Rank(const core::LlamaConfig& llama)
      : manifest_(core::LlamaManifest(llama)),
        weights_(manifest_),
        gradients_(manifest_),
        model_(llama, absl::GetFlag(FLAGS_rows), kSequence, LlamaModel::Use::kTraining) {
    InitializeLlama(llama, 1, weights_);
    for (int64_t i = 0; i < absl::GetFlag(FLAGS_rows) * kSequence; ++i) {
      batch_.tokens.push_back(static_cast<int32_t>(core::SplitMix64(i) % llama.vocab_size));
      batch_.targets.push_back(static_cast<int32_t>(core::SplitMix64(i + 1) % llama.vocab_size));
    }
  }

  Seconds Step(GradientBuckets& buckets, Kind kind) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    gradients_.Clear();
    (void)model_.Forward(weights_.View(), batch_);
    const core::Clock::TimePoint backward = core::SystemClock().Now();
    if (kind != kAlone) buckets.Begin(gradients_.Flat());
    model_.Backward(weights_.View(), batch_, gradients_.MutableView(), 1, [&](int tensor) {
      if (kind == kBeside) buckets.FinalFrom(gradients_.First(tensor));
    });
    Seconds seconds{.backward = core::SystemClock().SecondsSince(backward)};
    if (kind != kAlone) CHECK(buckets.Finish().ok());
    seconds.step = core::SystemClock().SecondsSince(begin);
    return seconds;
  }

  int64_t values() const { return std::ssize(gradients_.Flat()); }

 private:
  const core::Manifest manifest_;
  TensorValues weights_, gradients_;
  LlamaModel model_;
  Batch batch_;
};

// Medians over the turns of the slowest rank's seconds, for each kind of step.
std::vector<Seconds> Measure(const core::LlamaConfig& llama, ThreadLinks links, const std::vector<Kind>& kinds) {
  const int world = absl::GetFlag(FLAGS_ranks), turns = absl::GetFlag(FLAGS_turns);
  ThreadRanks wires(world, links);
  std::vector<std::vector<std::vector<Seconds>>> seconds(world);  // of rank, kind, turn
  std::vector<core::Thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      OrderedCollectives collectives(wires.wire(rank));
      Rank own(llama);
      const int64_t bytes = own.values() * static_cast<int64_t>(sizeof(float));
      GradientBuckets buckets(&collectives, kTimeout, bytes / absl::GetFlag(FLAGS_buckets) + 1);
      (void)own.Step(buckets, kAlone);
      seconds[rank].resize(kinds.size());
      for (int turn = 0; turn < turns; ++turn) {
        for (size_t kind = 0; kind < kinds.size(); ++kind) {
          CHECK(collectives.Await(collectives.Barrier(), kTimeout).ok());
          seconds[rank][kind].push_back(own.Step(buckets, kinds[kind]));
        }
      }
      CHECK(collectives.Await(collectives.Barrier(), kTimeout).ok());
    });
  }
  for (core::Thread& thread : threads) thread.Join();
  std::vector<Seconds> medians;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    std::vector<double> steps, backwards;
    for (int turn = 0; turn < turns; ++turn) {
      double step = 0, backward = 0;
      for (int rank = 0; rank < world; ++rank) {
        step = std::max(step, seconds[rank][kind][turn].step);
        backward = std::max(backward, seconds[rank][kind][turn].backward);
      }
      steps.push_back(step);
      backwards.push_back(backward);
    }
    medians.push_back({Median(steps), Median(backwards)});
  }
  return medians;
}

void Run() {
  const int64_t hidden = absl::GetFlag(FLAGS_hidden);
  const core::LlamaConfig llama{.hidden_size = hidden,
                                .intermediate_size = hidden * 8 / 3,
                                .num_hidden_layers = absl::GetFlag(FLAGS_layers),
                                .num_attention_heads = 4,
                                .num_key_value_heads = 4,
                                .vocab_size = 256,
                                .max_position_embeddings = kSequence};
  const int64_t parameters = core::NumParameters(core::LlamaManifest(llama));
  const double backward_s = Measure(llama, {}, {kAlone})[0].backward;
  // A rank sends 2 (R−1)/R of the gradients in an all-reduce.
  const double world = absl::GetFlag(FLAGS_ranks);
  const double sent = 2 * (world - 1) / world * static_cast<double>(parameters) * sizeof(float);
  const double reduce_s = absl::GetFlag(FLAGS_share) * backward_s;
  const std::vector<Seconds> medians = Measure(llama, {.bytes_per_s = sent / reduce_s}, {kAlone, kBeside, kAfter});
  std::printf(
      "{\"ranks\": %d, \"parameters\": %ld, \"buckets\": %ld, \"backward_ms\": %.2f, \"reduce_ms\": %.2f, "
      "\"step_ms\": %.2f, \"beside_ms\": %.2f, \"after_ms\": %.2f, \"beside_ratio\": %.3f, \"after_ratio\": %.3f}\n",
      absl::GetFlag(FLAGS_ranks), static_cast<long>(parameters), static_cast<long>(absl::GetFlag(FLAGS_buckets)),
      1e3 * backward_s, 1e3 * reduce_s, 1e3 * medians[0].step, 1e3 * medians[1].step, 1e3 * medians[2].step,
      medians[1].step / medians[0].step, medians[2].step / medians[0].step);
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  causeway::worker::StartAgainWithBestBlasKernels(argv);  // as causeway-worker does, for its speed
  absl::ParseCommandLine(argc, argv);
  causeway::worker::Run();
}
