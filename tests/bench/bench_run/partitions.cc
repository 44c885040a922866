// Eight ranks, threads, that divide a Llama's states over levels of two, two and two, whose links have rates of 10 : 3
// : 1: seconds of a step, and memory of a rank, beside the prediction. Prints a line of JSON for each strategy.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "core/thread.h"
#include "plan/what_if.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/parallel/level_shards.h"
#include "worker/parallel/llama_trainer.h"
#include "worker/ranks/ordered_collectives.h"

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

// Bytes a second of each level; 0: as fast as memory.
using Rates = std::array<double, 3>;

Rates RatesAt(double bytes_per_s) {
  return {bytes_per_s * kShares[0], bytes_per_s * kShares[1], bytes_per_s * kShares[2]};
}

core::LinkLevels LevelsAt(const Rates& rates) {
  core::LinkLevels levels;
  for (size_t l = 0; l < rates.size(); ++l) levels.site.push_back({kNames[l], 2, rates[l] > 0 ? rates[l] : 1e9});
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

// `trace`: where rank 0 writes its operations; empty: nowhere.
Measured Measure(const core::RunConfig& config, const Rates& rates, int steps, const std::string& trace = "") {
  ThreadRanks ranks(kRanks, {.bytes_per_s_between = [&rates](int from, int to) {
                      return rates[static_cast<size_t>(LevelBetween(from, to))];
                    }});
  const std::string levels = FileOf(LevelsAt(rates));
  std::vector<double> seconds(static_cast<size_t>(steps));
  std::vector<int64_t> bytes(kRanks);
  std::vector<core::Thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      OrderedCollectives values(ranks.wire(rank));
      auto made = LlamaTrainer::Make(config, "site",
                                     {.data_path = bench::Given<std::string>("data"),
                                      .ranks = {.values = &values, .timeout_s = 120},
                                      .trace_path = trace,
                                      .levels_path = levels});
      CHECK(made.ok());
      for (int step = 0; step < steps; ++step) {
        CHECK(values.Await(values.Barrier(), TimeoutOf(120)).ok());
        const core::Clock::TimePoint begin = core::SystemClock().Now();
        CHECK((*made)->Step(step + 1).ok());
        if (rank == 0) seconds[static_cast<size_t>(step)] = core::SystemClock().SecondsSince(begin);
      }
      bytes[static_cast<size_t>(rank)] = static_cast<LlamaTrainer&>(**made).state_bytes();
    });
  }
  for (core::Thread& thread : threads) thread.Join();
  return {*std::ranges::min_element(seconds), *std::ranges::max_element(bytes)};
}

plan::PartitionPlan PlanOf(const core::RunConfig& config, const core::LinkLevels& levels) {
  return PartitionPlanOf(config.llama, levels, ResolvePartition(*config.inner.partition, levels));
}

void Run() {
  spdlog::set_level(spdlog::level::warn);
  const double rate = 1e6 * bench::Given<double>("mbyte_per_s");
  const struct {
    const char* name;
    core::PartitionConfig partition;
  } strategies[] = {{"data parallel", {"rank", "rank", "rank"}},
                    {"ZeRO-2", {"rank", "site", "site"}},
                    {"ZeRO-3", {"site", "site", "site"}},
                    {"three levels", {"pair", "node", "site"}}};
  for (const auto& [name, partition] : strategies) {
    const core::RunConfig small = ConfigOf(partition, 128, 5), large = ConfigOf(partition, 512, 10);
    const double compute_s = Measure(small, {}, bench::Given<int>("steps")).step_s;
    const double step_s = Measure(small, RatesAt(rate), bench::Given<int>("steps")).step_s;
    const double predicted_s =
        compute_s + PlanOf(small, LevelsAt(RatesAt(rate))).LinkSeconds(LevelsAt(RatesAt(rate)), 2);
    const int64_t bytes = Measure(large, {}, 1).state_bytes;
    const plan::PartitionPlan plan = PlanOf(large, LevelsAt(RatesAt(rate)));
    double gathered = 0;  // the largest layer's weights and gradients, while they are gathered
    const PartitionLayout layout = PartitionLayoutOf(large.llama, LevelsAt(RatesAt(rate)));
    for (const LayoutGroup& group : layout.groups()) {
      gathered = std::max(gathered, 2 * sizeof(float) * static_cast<double>(group.values));
    }
    bench::Print({{"strategy", name},
                  {"compute_s", compute_s},
                  {"step_s", step_s},
                  {"predicted_s", predicted_s},
                  {"parameters", core::NumParameters(core::LlamaManifest(large.llama))},
                  {"state_bytes", bytes},
                  {"predicted_state_bytes", plan.memory_bytes() + gathered}});
  }
}

// The processor half as fast: one of its cores alone for all threads that are made from here on, in place of two.
void UseCores(int cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core = 0; core < cores; ++core) CPU_SET(core, &set);
  CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

void WhatIf() {
  const core::RunConfig config = ConfigOf({"pair", "node", "site"}, 256, 5);
  const double rate = 2e6 * bench::Given<double>("mbyte_per_s");
  const int steps = 2 * bench::Given<int>("steps") + 1;
  const std::string trace = std::filesystem::temp_directory_path() / absl::StrCat("partition-trace-", getpid());
  UseCores(2);
  Measure(config, RatesAt(rate), steps, trace);
  std::ifstream file(trace);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const plan::Work work = *plan::ReadWork(text, trace);
  const struct {
    const char* name;
    Rates links;  // times as fast
    double processor;
  } settings[] = {{"as it was", {1, 1, 1}, 1},
                  {"links half as fast", {0.5, 0.5, 0.5}, 1},
                  {"links four times as fast", {4, 4, 4}, 1},
                  {"the site's link alone four times as fast", {1, 1, 4}, 1},
                  {"the processor half as fast", {1, 1, 1}, 0.5},
                  {"links and the processor half as fast", {0.5, 0.5, 0.5}, 0.5}};
  for (const auto& [name, links, processor] : settings) {
    UseCores(processor < 1 ? 1 : 2);
    Rates rates = RatesAt(rate);
    plan::Factors factors{{"cpu", processor}, {"l2", processor}, {"l3", processor}, {"dram", processor}};
    for (size_t l = 0; l < rates.size(); ++l) {
      rates[l] *= links[l];
      factors[absl::StrCat("link ", kNames[l])] = links[l];
    }
    const std::string again = trace + "-again";
    Measure(config, rates, steps, again);
    std::ifstream measured(again);
    const std::string measured_text((std::istreambuf_iterator<char>(measured)), std::istreambuf_iterator<char>());
    const plan::WhatIf predicted = *plan::Simulate(work, factors);
    bench::Print({{"setting", name},
                  {"measured_s", plan::ReadWork(measured_text, again)->seconds_per_step},
                  {"predicted_s", predicted.seconds_per_step},
                  {"binds", predicted.Binds()}});
  }
}

}  // namespace
}  // namespace causeway::worker

namespace causeway::bench {

absl::Status Partitions() {
  worker::Run();
  worker::WhatIf();
  return absl::OkStatus();
}

}  // namespace causeway::bench
