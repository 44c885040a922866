#include "plan/parallel_grid.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;

PipelineCosts Costs(int sequences) {
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
                            .costs = {Costs(1), Costs(2), Costs(4)},
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
  GridInput input{.ranks = 128, .batch = 64, .costs = {Costs(1)}, .levels = Levels()};
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

}  // namespace
}  // namespace causeway::plan
