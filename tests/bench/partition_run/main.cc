// Eight ranks, threads, that divide a Llama's states over levels of two, two and two, whose links have rates of 10 : 3
// : 1: seconds of a step, and memory of a rank, beside the prediction. Prints a line of JSON for each strategy.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "core/thread.h"
#include "worker/partition/partition_trainer.h"
#include "worker/partition/partitioned_llama.h"
#include "worker/ranks/ordered_collectives.h"
#include "worker/ranks/thread_wire.h"

ABSL_FLAG(std::string, data, "", "text file");
ABSL_FLAG(double, mbyte_per_s, 60, "of the innermost level; the others have three tenths, and a tenth");
ABSL_FLAG(int, steps, 3, "of each strategy, of which the fastest counts");

namespace causeway::worker {
namespace {

constexpr int kRanks = 8;
constexpr double kShares[] = {1, 0.3, 0.1};
constexpr const char* kNames[] = {"pair", "node", "site"};

core::RunConfig ConfigOf(const core::PartitionConfig& partition, int64_t hidden, int64_t layers) {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kLlama;
  config.llama = {.hidden_size = hidden,
                  .intermediate_size = 8 * hidden / 3 / 8 * 8,
                  .num_hidden_layers = layers,
                  .num_attention_heads = 4,
                  .num_key_value_heads = 4,
                  .vocab_size = 256,
                  .max_position_embeddings = 16,
                  .tie_word_embeddings = false};
  config.inner.batch_size = 2 * kRanks;
  config.inner.micro_batches = 2;
  config.inner.partition = partition;
  return config;
}

core::LinkLevels LevelsAt(double bytes_per_s) {
  core::LinkLevels levels;
  for (int l = 0; l < 3; ++l) levels.site.push_back({kNames[l], 2, bytes_per_s * kShares[l]});
  return levels;
}

std::string FileOf(const core::LinkLevels& levels) {
  const std::string path = std::filesystem::temp_directory_path() / absl::StrCat("partition-levels-", getpid());
  std::ofstream file(path);
  file << "levels:\n";
  for (const core::LinkLevel& level : levels.site) {
    file << "  - {name: " << level.name << ", of: " << level.of << ", gbyte_per_s: " << 1e-9 * level.bytes_per_s
         << ", latency_us: 1}\n";
  }
  return path;
}

// The innermost level whose groups hold both ranks.
int LevelBetween(int a, int b) {
  int level = 0;
  while (a >> (level + 1) != b >> (level + 1)) ++level;
  return level;
}

struct Measured {
  double step_s = 0;
  int64_t state_bytes = 0;  // of the rank that has most
};

// bytes_per_s 0: as fast as memory.
Measured Measure(const core::RunConfig& config, double bytes_per_s, int steps) {
  ThreadRanks ranks(kRanks, {.bytes_per_s_between = [bytes_per_s](int from, int to) {
                      return bytes_per_s * kShares[LevelBetween(from, to)];
                    }});
  const std::string levels = FileOf(LevelsAt(bytes_per_s > 0 ? bytes_per_s : 1e9));
  std::vector<double> seconds(static_cast<size_t>(steps));
  std::vector<int64_t> bytes(kRanks);
  std::vector<core::Thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      OrderedCollectives values(ranks.wire(rank));
      auto made = PartitionTrainer::Make(config, "site",
                                         {.data_path = absl::GetFlag(FLAGS_data),
                                          .ranks = {.values = &values, .timeout_s = 120},
                                          .levels_path = levels});
      CHECK(made.ok());
      bytes[static_cast<size_t>(rank)] = static_cast<PartitionTrainer&>(**made).state_bytes();
      for (int step = 0; step < steps; ++step) {
        CHECK(values.Await(values.Barrier(), TimeoutOf(120)).ok());
        const core::Clock::TimePoint begin = core::SystemClock().Now();
        CHECK((*made)->Step(step + 1).ok());
        if (rank == 0) seconds[static_cast<size_t>(step)] = core::SystemClock().SecondsSince(begin);
      }
    });
  }
  for (core::Thread& thread : threads) thread.Join();
  return {steps == 0 ? 0 : *std::ranges::min_element(seconds), *std::ranges::max_element(bytes)};
}

plan::PartitionPlan PlanOf(const core::RunConfig& config, const core::LinkLevels& levels) {
  const PartitionLevels at = ResolvePartition(*config.inner.partition, levels);
  const double parameters = static_cast<double>(core::NumParameters(core::LlamaManifest(config.llama)));
  return *plan::PlanPartition({.parameters = parameters, .bytes = plan::ValueBytes::Float32(), .levels = levels},
                              {.weights = at.weights, .gradients = at.gradients, .optimizer = at.optimizer});
}

void Run() {
  spdlog::set_level(spdlog::level::warn);
  const double rate = 1e6 * absl::GetFlag(FLAGS_mbyte_per_s);
  const struct {
    const char* name;
    core::PartitionConfig partition;
  } strategies[] = {{"data parallel", {"rank", "rank", "rank"}},
                    {"ZeRO-2", {"rank", "site", "site"}},
                    {"ZeRO-3", {"site", "site", "site"}},
                    {"three levels", {"pair", "node", "site"}}};
  for (const auto& [name, partition] : strategies) {
    const core::RunConfig small = ConfigOf(partition, 128, 5), large = ConfigOf(partition, 512, 10);
    const double compute_s = Measure(small, 0, absl::GetFlag(FLAGS_steps)).step_s;
    const double step_s = Measure(small, rate, absl::GetFlag(FLAGS_steps)).step_s;
    const double predicted_s = compute_s + PlanOf(small, LevelsAt(rate)).LinkSeconds(LevelsAt(rate), 2);
    const int64_t bytes = Measure(large, 0, 0).state_bytes;
    const plan::PartitionPlan plan = PlanOf(large, LevelsAt(rate));
    double gathered = 0;  // the largest layer's weights and gradients, while they are gathered
    for (const std::vector<int>& group : GroupsOf(large.llama)) {
      double values = 0;
      for (const int tensor : group) {
        values += static_cast<double>(core::LlamaManifest(large.llama)[static_cast<size_t>(tensor)].NumValues());
      }
      gathered = std::max(gathered, 2 * sizeof(float) * values);
    }
    absl::PrintF(
        "{\"strategy\": \"%s\", \"compute_s\": %.4f, \"step_s\": %.4f, \"predicted_s\": %.4f, \"parameters\": %d, "
        "\"state_bytes\": %d, \"predicted_state_bytes\": %.0f}\n",
        name, compute_s, step_s, predicted_s, core::NumParameters(core::LlamaManifest(large.llama)), bytes,
        plan.memory_bytes() + gathered);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  causeway::worker::Run();
  return 0;
}
