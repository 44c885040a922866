// Merging on several threads: what they take, and that none of it shows in the result.
#include <gtest/gtest.h>

#include <tuple>

#include "core/thread_team.h"
#include "server/merge/work_items.h"
#include "tests/server/merge/merge_replay.h"

namespace causeway::server {
namespace {

using core::CodecId;
using core::MergeRule;
using core::TensorKind;

constexpr int kThreads[] = {1, 2, 3, 7};

TEST(WorkItems, AreAllUnitsInOrderNoMoreThanFitAndAsFewAsThereCanBe) {
  const std::vector<int64_t> units = {70, 3, 5, 40, 1, 1, 32, 31, 1, 33};
  const WorkItems items(units);
  std::vector<std::vector<bool>> seen;
  for (int64_t count : units) seen.emplace_back(count, false);
  std::pair<size_t, int64_t> last = {0, -1};
  int64_t units_before = kItemUnits;
  for (int64_t item = 0; item < items.size(); ++item) {
    int64_t in_item = 0;
    EXPECT_GT(units_before + items[item].front().units, kItemUnits);
    for (const Piece& piece : items[item]) {
      EXPECT_LT(last, std::pair(piece.source, piece.first_unit));
      last = {piece.source, piece.first_unit};
      for (int64_t unit = piece.first_unit; unit < piece.first_unit + piece.units; ++unit) {
        EXPECT_FALSE(seen[piece.source][unit]);
        seen[piece.source][unit] = true;
      }
      in_item += piece.units;
    }
    EXPECT_LE(in_item, kItemUnits);
    units_before = in_item;
  }
  for (size_t source = 0; source < units.size(); ++source) {
    EXPECT_EQ(seen[source], std::vector<bool>(units[source], true)) << source;
  }
  EXPECT_EQ(WorkItems({}).size(), 0);
}

// Sites cut their contributions in different places; the first as planned.
Round MakeMixedRound(const core::Fragment& fragment, const codecs::LegCodec& up) {
  Round mixed = {.up = up};
  for (int64_t units_per_chunk : {0, 3, 1, 50}) {
    Round round = MakeRound(fragment, 4, up, units_per_chunk);
    const size_t m = mixed.chunks.size();
    mixed.chunks.push_back(std::move(round.chunks[m]));
    mixed.views.push_back(std::move(round.views[m]));  // of strings that do not move with their vector
    mixed.inputs.push_back({round.inputs[m].site, round.inputs[m].weight, mixed.views.back()});
  }
  return mixed;
}

// Many small tensors, one that is several items and chunks of the update, and some after it.
core::Fragment ManySmallAndOneLarge() {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 20; ++i) sizes.push_back(i % 3 == 0 ? 4097 : 5 + 300 * i);
  sizes.insert(sizes.end(), {600'000, 10, 20'000, 300});
  std::vector<TensorKind> kinds(sizes.size(), TensorKind::kMatrix);
  kinds[1] = kinds[22] = TensorKind::kEmbedding;
  kinds[2] = TensorKind::kNorm;
  kinds[3] = TensorKind::kBuffer;
  return MakeFragment(sizes, kinds);
}

using Case = std::tuple<CodecId, CodecId, MergeRule>;

class MergeOnThreads : public ::testing::TestWithParam<Case> {};

TEST_P(MergeOnThreads, AnyNumberOfThemGivesTheSameBitsInTheSameOrder) {
  const auto [up, down, rule] = GetParam();
  const core::Fragment fragment = ManySmallAndOneLarge();
  const Round round = MakeMixedRound(fragment, Leg(up, {TensorKind::kNorm}));
  MergeSettings settings = {
      .outer = {0.7f, 0.9f}, .down = Leg(down, {TensorKind::kNorm}), .feedback_down = 1.0f, .rule = rule};
  const Result alone = RunMerge(fragment, round, settings);
  ExpectEqualsReplay(fragment, round, settings, alone);
  for (bool zstd : {false, true}) {
    settings.zstd = zstd;
    settings.threads = nullptr;
    const std::vector<std::string> chunks = RunMerge(fragment, round, settings).chunks;
    for (int count : kThreads) {
      SCOPED_TRACE(testing::Message() << count << " threads" << (zstd ? ", zstd" : ""));
      core::ThreadTeam threads(count);
      settings.threads = &threads;
      const Result result = RunMerge(fragment, round, settings);
      EXPECT_EQ(result.digest, alone.digest);
      EXPECT_EQ(result.chunks, chunks);
      EXPECT_EQ(result.state.anchor, alone.state.anchor);
      EXPECT_EQ(result.state.momentum, alone.state.momentum);
      EXPECT_EQ(result.state.residual, alone.state.residual);
      EXPECT_EQ(result.state.version, alone.state.version);
      EXPECT_EQ(result.products, alone.products);
      EXPECT_EQ(result.cosines, alone.cosines);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MergeOnThreads,
                         ::testing::Values(Case{CodecId::kInt4, CodecId::kInt4, MergeRule::kAverage},
                                           Case{CodecId::kInt4, CodecId::kInt4, MergeRule::kRadialDirectional},
                                           Case{CodecId::kFloat32, CodecId::kFloat32, MergeRule::kAverage},
                                           Case{CodecId::kFloat32, CodecId::kFloat32, MergeRule::kRadialDirectional},
                                           Case{CodecId::kRotatedSign, CodecId::kRotatedSign, MergeRule::kAverage},
                                           Case{CodecId::kRotatedLm4, CodecId::kInt8, MergeRule::kRadialDirectional},
                                           Case{CodecId::kSign, CodecId::kRotatedLm2, MergeRule::kAverage},
                                           Case{CodecId::kTopk, CodecId::kTopk, MergeRule::kRadialDirectional}),
                         [](const auto& test) {
                           return std::string(core::CodecName(std::get<0>(test.param))) + "_" +
                                  core::CodecName(std::get<1>(test.param)) +
                                  (std::get<2>(test.param) == MergeRule::kAverage ? "_average" : "_radial_directional");
                         });

// While the first chunk leaves, the others cannot be further ahead than the window, which is half of this fragment.
TEST(Merge, FirstChunkLeavesBeforeTheLastTileIsMerged) {
  for (int count : {1, 2, 3}) {
    core::ThreadTeam threads(count);
    const core::Fragment fragment = MakeFragment({2 * threads.window() * kItemUnits * core::kUnitValues});
    const Round round = MakeRound(fragment, 1, Leg(CodecId::kSign));
    FragmentState state;
    state.anchor.resize(fragment.padded_values());
    state.momentum.resize(fragment.padded_values());
    const MergeSettings settings = {.outer = {0.7f, 0.9f}, .down = Leg(CodecId::kFloat32), .threads = &threads};
    size_t emitted = 0;
    Merge(fragment, round.inputs, settings, state, [&](std::string) {
      if (emitted++ == 0) {
        EXPECT_EQ(state.anchor.back(), 0.0f);
      }
    });
    EXPECT_GT(emitted, 1u);
    EXPECT_NE(state.anchor.back(), 0.0f);
  }
}

TEST(Merge, OneSetOfThreadsServesOneMergeAfterTheOther) {
  const core::Fragment fragment = MakeFragment();
  const Round round = MakeRound(fragment, 3, Leg(CodecId::kInt4));
  MergeSettings settings = {.outer = {0.7f, 0.9f}, .down = Leg(CodecId::kInt4), .feedback_down = 1.0f};
  FragmentState alone = RandomState(fragment, settings), together = alone;
  core::ThreadTeam threads(3);
  for (int i = 0; i < 50; ++i) {
    settings.threads = nullptr;
    const uint64_t expected = Merge(fragment, round.inputs, settings, alone, [](std::string) {}).digest;
    settings.threads = &threads;
    ASSERT_EQ(Merge(fragment, round.inputs, settings, together, [](std::string) {}).digest, expected) << i;
  }
}

}  // namespace
}  // namespace causeway::server
