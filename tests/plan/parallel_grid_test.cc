#include "plan/parallel_grid.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "core/random.h"
#include "plan/partition.h"
#include "plan/what_if.h"

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;

PipelineCosts CostsOfSequences(int sequences) {
  const int64_t us = 1000 * sequences;
  return {.layers = 16,
          .layer = {.forward = 400 * us, .input = 420 * us, .weight = 350 * us},
          .embedding = {.forward = 10 * us, .input = 0, .weight = 12 * us},
          .head = {.forward = 900 * us, .input = 900 * us, .weight = 850 * us},
          .layer_bytes = 70e6 * sequences,
          .message_bytes = 16e6 * sequences,
          .sequences = sequences,
          .heads = 16,
          .layer_parameters = 50e6,
          .embedding_parameters = 65e6,
          .head_parameters = 65e6,
          .parameter_bytes = 16,
          .gradient_bytes = 4};
}

core::LinkLevels Levels() {
  return {.site = {{.name = "pair", .of = 2, .bytes_per_s = 100e9, .latency_s = 2e-6},
                   {.name = "node", .of = 4, .bytes_per_s = 20e9, .latency_s = 5e-6},
                   {.name = "site", .of = 8, .bytes_per_s = 2e9, .latency_s = 20e-6}}};
}

// The outermost level on which two ranks of some group differ, rank by rank.
const core::LinkLevel& LinkOf(const core::LinkLevels& levels, int ranks, int stride, int size) {
  size_t outermost = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int place = rank / stride % size, other = rank - place * stride;  // the group's first
    int64_t held = 1;
    for (size_t i = 0; i < levels.site.size(); ++i) {
      if (rank / held != other / held) outermost = std::max(outermost, i);
      held *= levels.site[i].of;
    }
  }
  return levels.site[outermost];
}

using Answer = std::tuple<double, int, int, int, int, int>;  // seconds, t, p, d, stages of a device, sequences

// Every cut, its time and its memory written down once more.
std::vector<Answer> Enumerated(const GridInput& input) {
  std::vector<Answer> answers;
  for (const PipelineCosts& costs : input.costs) {
    for (int t = 1; t <= input.ranks; ++t) {
      for (int p = 1; p <= input.ranks; ++p) {
        for (int d = 1; d <= input.ranks; ++d) {
          for (int v = 1; v <= 4; ++v) {
            const int b = costs.sequences;
            if (t * p * d != input.ranks || costs.heads % t != 0 || input.batch % (d * b) != 0) continue;
            const int m = input.batch / d / b;
            if (v > 1 && (p == 1 || m % p != 0)) continue;
            if (p * v > costs.layers) continue;
            const std::vector<StageLayers> split = *SplitLayers(costs, p * v);
            const core::LinkLevel &tensor = LinkOf(input.levels, input.ranks, 1, t),
                                  &data = LinkOf(input.levels, input.ranks, t, d),
                                  &pipeline = LinkOf(input.levels, input.ranks, t * d, p);
            double slowest = 0, most_parameters = 0, memory = 0;
            for (int device = 0; device < p; ++device) {
              double work = 0, parameters = 0;
              int layers = 0;
              for (int s = device; s < p * v; s += p) {
                const StageLayers& stage = split[static_cast<size_t>(s)];
                const int count = stage.last - stage.first + 1;
                layers += count;
                work += 1e-9 * static_cast<double>(count * 1170 * 1000 * b) / t;
                parameters += count * 50e6;
                if (s == 0) work += 1e-9 * 22 * 1000 * b / t, parameters += 65e6;
                if (s == p * v - 1) work += 1e-9 * 2650 * 1000 * b / t, parameters += 65e6;
              }
              work += layers * (8.0 * (t - 1) / t * 16e6 * b / tensor.bytes_per_s + 8 * (t - 1) * tensor.latency_s);
              slowest = std::max(slowest, work);
              most_parameters = std::max(most_parameters, parameters);
              const double chunks_kept =
                  v == 1 ? std::min(m, p - device) : std::min(v * m, 2 * (p - device - 1) + (v - 1) * p + 1);
              memory = std::max(memory, (16 * parameters + 70e6 * b * layers * chunks_kept / v) / t);
            }
            if (input.memory_bytes > 0 && memory > input.memory_bytes) continue;
            double seconds = m * slowest;
            if (p > 1) {
              const double message = 16e6 * b / t / pipeline.bytes_per_s, of_all = 2 * v * message;
              seconds = (m + static_cast<double>(p - 1) / v) * std::max(slowest, of_all) +
                        2 * (p - 1) * (message + pipeline.latency_s);
            }
            if (d > 1) {
              seconds += 2.0 * (d - 1) / d * 4 * most_parameters / t / data.bytes_per_s + 2 * (d - 1) * data.latency_s;
            }
            answers.emplace_back(seconds, t, p, d, v, b);
          }
        }
      }
    }
  }
  std::ranges::sort(answers);
  return answers;
}

TEST(PlanGrid, TheBestFiveAreThoseOfAnExhaustiveEnumeration) {
  for (const int ranks : {8, 64}) {
    for (const double memory_bytes : {0.0, 4e9}) {
      const GridInput input{.ranks = ranks,
                            .batch = 4 * ranks,
                            .costs = {CostsOfSequences(1), CostsOfSequences(2), CostsOfSequences(4)},
                            .levels = Levels(),
                            .memory_bytes = memory_bytes};
      const auto rows = PlanGrid(input);
      ASSERT_TRUE(rows.ok()) << rows.status();
      const std::vector<Answer> all = Enumerated(input);
      ASSERT_EQ(rows->size(), all.size());
      ASSERT_GE(all.size(), 5u);
      for (size_t i = 0; i < 5; ++i) {
        const GridRow& row = (*rows)[i];
        EXPECT_NEAR(row.step_s(), std::get<0>(all[i]), 1e-9 * row.step_s()) << ranks << " " << i;
        // Rows of the same time may change places.
        EXPECT_TRUE(std::ranges::any_of(all,
                                        [&](const Answer& a) {
                                          return std::abs(std::get<0>(a) - row.step_s()) < 1e-9 * row.step_s() &&
                                                 std::get<1>(a) == row.tensor && std::get<2>(a) == row.pipeline &&
                                                 std::get<3>(a) == row.data && std::get<4>(a) == row.chunks &&
                                                 std::get<5>(a) == row.sequences;
                                        }))
            << ranks << " " << i;
      }
    }
  }
}

// Table 1 of arXiv 2104.04473: 145.6 billion parameters, 80 layers, hidden 12,288, sequences of 2,048 tokens, a
// vocabulary of 51,200, on 1,536 GPUs in nodes of 8, with t = 8, p = 8 and a batch of 2,304; 16-bit values.
TEST(PlanGrid, BubbleAndBytesOfAPublishedConfigurationAreThoseWorkedOutByHand) {
  const double h = 12'288, layer = 12 * h * h + 13 * h;
  const GridInput input{.ranks = 1536,
                        .batch = 2304,
                        .costs = {{.layers = 80,
                                   .layer = {.forward = 1000, .input = 1000, .weight = 1000},
                                   .message_bytes = 2048 * h * 2,
                                   .sequences = 1,
                                   .heads = 96,
                                   .layer_parameters = layer,
                                   .embedding_parameters = (51'200 + 2048) * h,
                                   .parameter_bytes = 18,
                                   .gradient_bytes = 2}},
                        .levels = {.site = {{.name = "node", .of = 8, .bytes_per_s = 300e9},
                                            {.name = "site", .of = 192, .bytes_per_s = 25e9}}}};
  EXPECT_NEAR(80 * layer + (51'200 + 2048) * h, 145.6e9, 0.05e9);
  const auto rows = PlanGrid(input);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto row = std::ranges::find_if(
      *rows, [](const GridRow& r) { return r.tensor == 8 && r.pipeline == 8 && r.data == 24 && r.chunks == 1; });
  ASSERT_NE(row, rows->end());
  EXPECT_EQ(row->micro_batches, 96);                       // 2,304 ÷ 24
  EXPECT_DOUBLE_EQ(row->bubble_share(), 7.0 / 103);        // (p − 1) ÷ (m + p − 1)
  EXPECT_DOUBLE_EQ(row->tensor_bytes, 338'228'674'560.0);  // 96 · 10 layers · 8·2,048·12,288·7/8 values of 2 bytes
  EXPECT_DOUBLE_EQ(row->message_bytes, 1'207'959'552.0);   // 96 · 2 · 2,048·12,288 ÷ 8 values of 2 bytes
  EXPECT_NEAR(row->gradient_bytes, 8'996'498'944.0, 1);    // 2 · 23/24 · 2 bytes · (10 layers + embedding) ÷ 8
  const auto interleaved = std::ranges::find_if(
      *rows, [](const GridRow& r) { return r.tensor == 8 && r.pipeline == 8 && r.data == 24 && r.chunks == 2; });
  ASSERT_NE(interleaved, rows->end());
  EXPECT_DOUBLE_EQ(interleaved->bubble_share(), 7.0 / 199);  // a half of 7 ÷ 96, in the paper's measure
  EXPECT_DOUBLE_EQ(interleaved->message_bytes, 2 * 1'207'959'552.0);
}

TEST(PlanGrid, GroupsLieOnTheInnermostLevelThatHoldsThem) {
  const core::LinkLevels levels = Levels();
  EXPECT_EQ(SpannedLevel(levels, 64, 1, 1), -1);
  EXPECT_EQ(SpannedLevel(levels, 64, 1, 2), 0);
  EXPECT_EQ(SpannedLevel(levels, 64, 2, 2), 1);
  EXPECT_EQ(SpannedLevel(levels, 64, 1, 8), 1);
  EXPECT_EQ(SpannedLevel(levels, 6, 1, 3), 1);   // 0-2 and 3-5 lie in one node
  EXPECT_EQ(SpannedLevel(levels, 12, 1, 3), 2);  // 6-8 does not
  EXPECT_EQ(SpannedLevel(levels, 64, 8, 8), 2);
}

TEST(PlanGrid, WhatCannotBeIsRefusedWithWhatWasExpected) {
  const auto refusal = [](const GridInput& input) { return std::string(PlanGrid(input).status().message()); };
  GridInput input{.ranks = 128, .batch = 64, .costs = {CostsOfSequences(1)}, .levels = Levels()};
  EXPECT_EQ(refusal(input), "expected 1 to 64 ranks, as the levels hold, got 128");
  input.ranks = 64;
  input.memory_bytes = 1e6;
  EXPECT_THAT(refusal(input), HasSubstr("the smallest cut needs"));
  input.memory_bytes = 0;
  input.batch = 63;
  input.costs[0].heads = 1;
  input.costs[0].layers = 3;
  EXPECT_THAT(refusal(input), HasSubstr("none of whose cuts does"));
  input.costs[0].heads = 0;
  EXPECT_EQ(refusal(input), "expected costs with heads, got costs without");
}

core::LinkLevels Frontier(int nodes) {
  return {.site = {{.name = "pair", .of = 2, .bytes_per_s = 200e9},
                   {.name = "node", .of = 4, .bytes_per_s = 100e9},
                   {.name = "site", .of = nodes, .bytes_per_s = 12.5e9}},
          .wan = {}};
}

PartitionPlan Plan(const std::string& name, int nodes, double parameters = 20e9) {
  const core::LinkLevels levels = Frontier(nodes);
  const std::vector<PartitionStrategy> known = KnownStrategies(levels);
  const auto strategy = std::ranges::find(known, name, &PartitionStrategy::name);
  EXPECT_NE(strategy, known.end()) << name;
  const auto plan = PlanPartition({.parameters = parameters, .levels = levels}, *strategy);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// 20 billion parameters, 8 ranks a node.
TEST(Partition, ARankHoldsWhatTheThreeLevelTableSays) {
  struct Row {
    int nodes;
    double zero3, zero_plus, three;
  };
  for (const Row& row : {Row{1, 40, 45, 55}, Row{2, 20, 25, 40}, Row{4, 10, 15, 32.5}, Row{8, 5, 10, 28.75},
                         Row{16, 2.5, 7.5, 26.88}, Row{32, 1.25, 6.25, 25.94}, Row{48, 0.83, 5.83, 25.63}}) {
    EXPECT_NEAR(Plan("ZeRO-3", row.nodes).memory_bytes() / 1e9, row.zero3, 0.006) << row.nodes;
    EXPECT_NEAR(Plan("ZeRO++", row.nodes).memory_bytes() / 1e9, row.zero_plus, 0.006) << row.nodes;
    EXPECT_NEAR(Plan("three levels", row.nodes).memory_bytes() / 1e9, row.three, 0.006) << row.nodes;
  }
}

TEST(Partition, BetweenNodesCrossesWhatTheTableSays) {
  EXPECT_NEAR(Plan("ZeRO-3", 48).flat[2].micro_batch / 1e9, 119.7, 0.05);
  EXPECT_NEAR(Plan("ZeRO++", 48).flat[2].micro_batch / 1e9, 29.9, 0.05);
  const PartitionPlan three = Plan("three levels", 48);
  EXPECT_NEAR(three.hierarchical[2].step / 1e9, 4.9 + 4.9, 0.01);
  EXPECT_EQ(three.hierarchical[2].micro_batch, 0);
}

TEST(Partition, ThreeLevelsWithTheCodecsOfZeroPlusSendAQuarterAndAHalf) {
  const PartitionPlan plain = Plan("three levels", 48), narrow = Plan("three levels q", 48);
  EXPECT_EQ(plain.memory_bytes(), narrow.memory_bytes());
  EXPECT_NEAR(narrow.hierarchical[2].step / plain.hierarchical[2].step, (0.25 + 0.5) / 2, 0.01);
  EXPECT_NEAR(narrow.hierarchical[1].micro_batch / plain.hierarchical[1].micro_batch, 0.25, 0.01);  // gradients
  EXPECT_NEAR(narrow.hierarchical[0].micro_batch / plain.hierarchical[0].micro_batch, (0.5 + 1 + 0.25) / 3, 0.01);
}

TEST(Partition, FlatIsNeverLessOnTheSlowestLevelThanHierarchicalAndOneLevelIsBoth) {
  for (const PartitionStrategy& strategy : KnownStrategies(Frontier(6))) {
    const PartitionPlan plan = Plan(strategy.name, 6);
    EXPECT_GE(plan.flat[2].micro_batch, plan.hierarchical[2].micro_batch) << strategy.name;
    EXPECT_GE(plan.flat[2].step + 1, plan.hierarchical[2].step) << strategy.name;
  }
  const core::LinkLevels one{.site = {{.name = "site", .of = 8, .bytes_per_s = 1}}, .wan = {}};
  const auto plan = PlanPartition({.parameters = 1e6, .levels = one}, {.weights = 0, .gradients = 0, .optimizer = 0});
  EXPECT_EQ(plan->flat[0].micro_batch, plan->hierarchical[0].micro_batch);
  EXPECT_DOUBLE_EQ(plan->flat[0].micro_batch, 3 * 2e6 * 7 / 8);
}

// Over levels as over one: a gather brings a rank all but its own part, an all-reduce twice that.
TEST(Partition, BytesOfAllLevelsTogetherAreThoseOfOneGroup) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const auto draw = [&](uint64_t what, int most) {
      return static_cast<int>(core::HashCombine(seed, what) % static_cast<uint64_t>(most));
    };
    core::LinkLevels levels;
    double ranks = 1;
    for (int l = 0; l < 2 + draw(0, 7); ++l) {
      levels.site.push_back({.name = std::to_string(l), .of = 1 + draw(10 + l, 6), .bytes_per_s = 1});
      ranks *= static_cast<double>(levels.site.back().of);
    }
    const double parameters = 1 + draw(1, 1'000'000);
    const int top = static_cast<int>(levels.site.size()) - 1;
    const auto zero3 = PlanPartition({.parameters = parameters, .levels = levels},
                                     {.weights = top, .gradients = top, .optimizer = top});
    const auto alike = PlanPartition({.parameters = parameters, .levels = levels}, {});
    double gathered = 0, reduced = 0;
    for (int l = 0; l <= top; ++l) {
      gathered += zero3->hierarchical[static_cast<size_t>(l)].micro_batch;
      reduced += alike->hierarchical[static_cast<size_t>(l)].step;
    }
    ASSERT_NEAR(gathered, 3 * 2 * parameters * (ranks - 1) / ranks, 1e-6 * parameters) << seed;
    ASSERT_NEAR(reduced, 2 * 2 * parameters * (ranks - 1) / ranks, 1e-6 * parameters) << seed;
    ASSERT_NEAR(zero3->memory_bytes() * ranks, 16 * parameters, 1e-6 * parameters) << seed;
  }
}

TEST(Partition, StatesThatAreNotNestedAndLevelsThatAreNotThereAreNamed) {
  const core::LinkLevels levels = Frontier(2);
  const auto words = [&](const PartitionStrategy& strategy) {
    return std::string(PlanPartition({.parameters = 1e9, .levels = levels}, strategy).status().message());
  };
  EXPECT_EQ(words({.weights = 2, .gradients = 1, .optimizer = 2}),
            "expected weights within gradients within optimizer, got weights site, gradients node, optimizer site");
  EXPECT_THAT(words({.weights = 0}), HasSubstr("weights: expected rank, as gradients and optimizer are, got pair"));
  EXPECT_THAT(words({.weights = 3}), HasSubstr("weights: expected a level below 3, got 3"));
  EXPECT_EQ(std::string(LevelOf(levels, "rack").status().message()),
            "expected one of rank, pair, node, site, got rack");
  EXPECT_EQ(*LevelOf(levels, "site"), 2);
}

TEST(Partition, WanBytesAreThoseOfTheCodecsChunks) {
  EXPECT_NEAR(WanBytes(20e9, core::CodecId::kInt4) / 20e9, 0.5, 0.02);
}

// A step that a cache binds, beside a link on another lane.
Work CacheBound() {
  return {.speeds = {{"cpu", 100}, {"l3", 10}, {"link", 5}},
          .steps = {{{.name = "forward", .seconds = 2, .uses = {{"cpu", 120}, {"l3", 20}}},
                     {.name = "exchange", .lane = 1, .seconds = 1, .uses = {{"link", 5}}},
                     {.name = "backward", .seconds = 4, .uses = {{"cpu", 240}, {"l3", 40}}}}},
          .seconds_per_step = 6};
}

Work RandomWork(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&] { return core::UnitInterval(core::HashCombine(seed, draws++)); };
  Work work{.speeds = {{"a", 1 + draw()}, {"b", 1 + draw()}, {"c", 1 + draw()}}};
  for (int s = 0; s < 3; ++s) {
    std::vector<WorkOperation>& step = work.steps.emplace_back();
    for (int i = 0; i < 12; ++i) {
      step.push_back(
          {.name = "x", .lane = static_cast<int>(3 * draw()), .seconds = draw(), .gap_s = 0.1 * draw(), .uses = {}});
      for (const char* resource : {"a", "b", "c"}) {
        if (draw() < 0.6) step.back().uses[resource] = draw();
      }
    }
  }
  return work;
}

TEST(WhatIf, FactorOneGivesTheTracesOwnTimeAndSharesSumToOne) {
  const auto now = Simulate(CacheBound(), {});
  ASSERT_TRUE(now.ok());
  EXPECT_DOUBLE_EQ(now->seconds_per_step, 6);
  EXPECT_DOUBLE_EQ(now->shares.at("l3"), 1);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Work work = RandomWork(seed);
    double sum = 0;
    const WhatIf faster = *Simulate(work, {{"a", 3}});
    for (const auto& [resource, share] : faster.shares) sum += share;
    ASSERT_NEAR(sum, 1, 1e-12) << seed;
  }
}

TEST(WhatIf, MoreSpeedNeverSlows) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Work work = RandomWork(seed);
    double before = Simulate(work, {})->seconds_per_step;
    for (const double factor : {1.1, 2.0, 7.0, 100.0}) {
      const double after = Simulate(work, {{"a", factor}, {"b", factor}})->seconds_per_step;
      ASSERT_LE(after, before + 1e-12) << seed;
      before = after;
    }
  }
}

TEST(WhatIf, TheNextWallIsNamed) {
  // The cache three times as fast: the processor binds at 1.2 + 2.4 s of what were 6, the link ends before.
  const auto faster = Simulate(CacheBound(), {{"l3", 3}});
  EXPECT_NEAR(faster->seconds_per_step, 3.6, 1e-12);
  EXPECT_EQ(faster->Binds(), "cpu");
  EXPECT_EQ(Simulate(CacheBound(), {{"cpu", 25}})->seconds_per_step, 6);  // buys nothing
  const std::vector<Gain> gains = GainsOfEach(CacheBound(), 2);
  EXPECT_EQ(gains[0].resource, "l3");
  EXPECT_NEAR(gains[0].speedup, 6 / 3.6, 1e-12);
  EXPECT_EQ(gains[0].then_binds, "cpu");
  EXPECT_EQ(gains[1].speedup, 1);
  // Both: then the link is the wall.
  EXPECT_EQ(Simulate(CacheBound(), {{"l3", 100}, {"cpu", 100}})->Binds(), "link");
}

TEST(WhatIf, ReadsATraceAndNamesTheLineThatIsNotOne) {
  const std::string resources = R"({"name": "resources", "args": {"cpu": 100, "link": 5}},)";
  const auto event = [](const std::string& name, int ts, int dur, int step) {
    return "{\"name\": \"" + name + "\", \"ts\": " + std::to_string(ts) + ", \"dur\": " + std::to_string(dur) +
           ", \"tid\": 0, \"args\": {\"step\": " + std::to_string(step) + ", \"uses\": {\"cpu\": 3}}},\n";
  };
  const auto work = ReadWork(
      "[\n" + resources + "\n" + event("warm", 0, 900, 1) + event("a", 1000, 30, 2) + event("b", 1040, 60, 2), "t");
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_NEAR(work->seconds_per_step, 100e-6, 1e-12);
  EXPECT_NEAR(Simulate(*work, {})->seconds_per_step, 100e-6, 1e-12);
  EXPECT_NEAR(Simulate(*work, {{"cpu", 2}})->seconds_per_step, 55e-6, 1e-12);  // the gap stays
  EXPECT_THAT(std::string(ReadWork("[\nhello", "t").status().message()),
              HasSubstr("t: expected JSON, line 2, column 1: got hello"));
  EXPECT_THAT(std::string(ReadWork("[\n" + event("a", 0, 1, 1), "t").status().message()), HasSubstr("named resources"));
  EXPECT_THAT(std::string(Simulate(*work, {{"gpu", 2}}).status().message()),
              HasSubstr("expected a resource of the trace, cpu, link, got gpu"));
  EXPECT_THAT(std::string(Simulate(*work, {{"cpu", 0}}).status().message()),
              HasSubstr("expected a factor above 0, got 0"));
}

TEST(WhatIf, ALinkIsAsFastAsItWasOnceAndTheRestIsWaitingForOthersComputing) {
  std::string text = R"([
{"name": "resources", "args": {"cpu": 100, "link node": 7}},
)";
  for (const auto& [ts, dur] : {std::pair(0, 10), std::pair(10, 30)}) {
    text += "{\"name\": \"gather\", \"ts\": " + std::to_string(ts) + ", \"dur\": " + std::to_string(dur) +
            ", \"tid\": 0, \"args\": {\"step\": 1, \"uses\": {\"link node\": 5}}},\n";
  }
  const auto work = ReadWork(text, "t");
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_NEAR(work->speeds.at("link node"), 5 / 10e-6, 1e-3);
  EXPECT_NEAR(Simulate(*work, {})->seconds_per_step, 40e-6, 1e-12);
  EXPECT_NEAR(Simulate(*work, {{"link node", 10}})->seconds_per_step, 22e-6, 1e-12);
  EXPECT_NEAR(Simulate(*work, {{"cpu", 2}})->seconds_per_step, 30e-6, 1e-12);
}

// Geometric means of 8 programs at 4, 10, 20, 50 and 100 GHz; T = A + C ÷ f through 4 and 20 (arXiv 2408.03308's data).
TEST(WhatIf, TheFitOfTwoColumnsGivesThePublishedLadder) {
  struct Row {
    std::vector<double> speedups;
    double at_100;
  };
  for (const Row& row : {Row{{1, 1.54, 1.91, 1.99, 2.06}, 2.33}, Row{{1, 2.07, 3.14, 4.54, 5.34}, 5.49},
                         Row{{1, 2.31, 4.11, 7.79, 11.31}, 10.87}, Row{{1, 2.39, 4.46, 9.33, 14.86}, 14.48},
                         Row{{1, 2.42, 4.55, 9.74, 15.88}, 15.69}}) {
    std::vector<Sample> samples;
    const double speeds[] = {4, 10, 20, 50, 100};
    for (size_t i = 0; i < 5; ++i) samples.push_back({speeds[i], row.speedups[i]});
    const auto fit = FitSamples(samples, 2);
    ASSERT_TRUE(fit.ok());
    EXPECT_NEAR(fit->predicted[2], row.speedups[2], 1e-9);
    EXPECT_NEAR(fit->predicted[4], row.at_100, 0.15) << row.at_100;
  }
  EXPECT_FALSE(FitSamples({{4, 1}}, 1).ok());
  EXPECT_FALSE(FitSamples({{4, 1}, {3, 2}}, 1).ok());
}

}  // namespace
}  // namespace causeway::plan
