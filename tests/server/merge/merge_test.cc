#include "server/merge/merge.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "codecs/compression.h"
#include "core/limits.h"
#include "core/thread_team.h"
#include "server/merge/contribution.h"
#include "server/merge/work_items.h"
#include "tests/server/merge/merge_replay.h"

namespace causeway::server {
namespace {

using codecs::ChunkSpan;
using codecs::ChunkView;
using core::CodecId;
using core::MergeRule;
using core::TensorKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// All that a merge may write: not the one whose scale is the whole chunk's, which is last.
const auto kDownCodecs = ::testing::ValuesIn(std::begin(core::kAllCodecs), std::end(core::kAllCodecs) - 1);

constexpr core::OuterParameters kOuter = {0.7f, 0.9f};

class MergeWith : public ::testing::TestWithParam<std::tuple<CodecId, CodecId>> {};

TEST_P(MergeWith, AnyNumberOfSitesEqualsTheScalarReplay) {
  const auto [up, down] = GetParam();
  const core::Fragment fragment = MakeFragment();
  for (int sites : {1, 2, 3, 7}) {
    const Round round = MakeRound(fragment, sites, Leg(up));
    for (float feedback : {0.0f, 1.0f, 0.9f}) {
      const MergeSettings settings = {kOuter, Leg(down), feedback};
      SCOPED_TRACE(testing::Message() << sites << " sites, feedback " << feedback);
      ExpectEqualsReplay(fragment, round, settings, RunMerge(fragment, round, settings));
    }
  }
}

TEST_P(MergeWith, ExemptTensorsAreBfloat16OnBothLegs) {
  const auto [up, down] = GetParam();
  const std::vector<TensorKind> exempt = {TensorKind::kNorm, TensorKind::kEmbedding};
  const core::Fragment fragment =
      MakeFragment({5000, 64, 300, 64, 4097, 300}, {TensorKind::kEmbedding, TensorKind::kNorm, TensorKind::kMatrix,
                                                    TensorKind::kNorm, TensorKind::kHead, TensorKind::kBuffer});
  const Round round = MakeRound(fragment, 3, Leg(up, exempt));
  const MergeSettings settings = {kOuter, Leg(down, exempt), 1.0f};
  const Result result = RunMerge(fragment, round, settings);
  ExpectEqualsReplay(fragment, round, settings, result);
  std::vector<CodecId> up_codecs, down_codecs;
  for (const ChunkView& view : round.views[0]) up_codecs.push_back(view.span().codec);
  for (const ChunkView& view : ParseAll(result.chunks)) down_codecs.push_back(view.span().codec);
  const CodecId bf16 = CodecId::kBfloat16;
  EXPECT_EQ(up_codecs, (std::vector{bf16, bf16, up, bf16, up, up}));
  EXPECT_EQ(down_codecs, (std::vector{bf16, bf16, down, bf16, down, down}));
}

INSTANTIATE_TEST_SUITE_P(UpAndDown, MergeWith, ::testing::Combine(::testing::ValuesIn(core::kAllCodecs), kDownCodecs),
                         [](const auto& test) {
                           return std::string(core::CodecName(std::get<0>(test.param))) + "_" +
                                  core::CodecName(std::get<1>(test.param));
                         });

class MergeDownWith : public ::testing::TestWithParam<CodecId> {};

TEST_P(MergeDownWith, BoundariesOfContributionsDoNotMatter) {
  const core::Fragment fragment = MakeFragment();
  const MergeSettings settings = {kOuter, Leg(GetParam()), 1.0f};
  for (CodecId up : {CodecId::kInt8, CodecId::kRotatedLm4, CodecId::kTopk}) {
    const Result planned = RunMerge(fragment, MakeRound(fragment, 3, Leg(up)), settings);
    for (int64_t units_per_chunk : {1, 3, 5, 100}) {
      const Result other = RunMerge(fragment, MakeRound(fragment, 3, Leg(up), units_per_chunk), settings);
      EXPECT_EQ(other.chunks, planned.chunks) << units_per_chunk;
      EXPECT_EQ(other.digest, planned.digest) << units_per_chunk;
    }
  }
}

TEST_P(MergeDownWith, ZstdChangesTheChunksBytesAndNothingElse) {
  const core::Fragment fragment = MakeFragment();
  const Round round = MakeRound(fragment, 2, Leg(CodecId::kInt4));
  MergeSettings settings = {kOuter, Leg(GetParam()), 1.0f};
  const Result plain = RunMerge(fragment, round, settings);
  settings.zstd = true;
  const Result compressed = RunMerge(fragment, round, settings);
  EXPECT_EQ(compressed.digest, plain.digest);
  EXPECT_EQ(compressed.state.residual, plain.state.residual);
  ASSERT_EQ(compressed.chunks.size(), plain.chunks.size());
  for (size_t c = 0; c < plain.chunks.size(); ++c) {
    EXPECT_TRUE(compressed.chunks[c] == codecs::CompressChunk(plain.chunks[c])) << c;
    EXPECT_TRUE(*codecs::ExpandChunk(compressed.chunks[c]) == plain.chunks[c]) << c;
  }
}

TEST_P(MergeDownWith, PaddingStaysZero) {
  const core::Fragment fragment = MakeFragment({10, 5000});
  const auto result =
      RunMerge(fragment, MakeRound(fragment, 2, Leg(CodecId::kRotatedSign)), {kOuter, Leg(GetParam()), 1.0f});
  const auto expect_zeros = [](const core::AlignedFloats& values, size_t end_of_first, size_t end_of_second) {
    for (size_t i = 0; i < values.size(); ++i) {
      const bool padding = (i >= end_of_first && i < 4096) || i >= 4096 + end_of_second;
      if (padding) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), 0u) << i;
      }
    }
  };
  expect_zeros(result.state.anchor, 10, 5000);
  expect_zeros(result.state.momentum, 10, 5000);
  const bool rotates = codecs::GetCodec(GetParam()).rotates();  // then the residual has whole blocks
  expect_zeros(result.state.residual, rotates ? 256 : 10, rotates ? 5120 : 5000);
}

TEST_P(MergeDownWith, SumsBeyondTheCodecsRangeAreClampedAndTheMergeGoesOn) {
  const core::Fragment fragment = MakeFragment({300});
  const float largest = std::nextafter(core::kMaxMagnitude, 0.0f);
  const MergeSettings settings = {kOuter, Leg(GetParam()), 1.0f};
  Round round = {.up = Leg(CodecId::kFloat32)};
  round.chunks = {{*codecs::EncodeChunk({CodecId::kFloat32, 0, 300}, std::vector<float>(300, largest), {})}};
  round.views = {ParseAll(round.chunks[0])};
  round.inputs = {{"a", 1.0f, round.views[0]}};
  FragmentState state = RandomState(fragment, settings);
  std::fill_n(state.residual.begin(), 300, largest);
  for (int i = 0; i < 5; ++i) {
    std::string update;
    Merge(fragment, round.inputs, settings, state, [&](std::string bytes) { update = std::move(bytes); });
    const auto view = ChunkView::Parse(update);
    ASSERT_TRUE(view.ok()) << view.status();
    const std::vector<float> g = DecodeAll({*view}, 4096);
    float sum = 0;
    for (int value = 0; value < 300; ++value) {
      ASSERT_LT(std::abs(g[value]), core::kMaxMagnitude);
      ASSERT_LE(std::abs(state.residual[value]), 2 * core::kMaxMagnitude);
      sum += g[value] / largest;
    }
    EXPECT_GT(sum, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Down, MergeDownWith, kDownCodecs,
                         [](const auto& test) { return std::string(core::CodecName(test.param)); });

TEST(Merge, UpdateOfSeveralChunksEqualsTheReplay) {
  const core::Fragment fragment = MakeFragment({600'000, 10});  // eight float32 chunks, then one
  for (CodecId up : {CodecId::kInt4, CodecId::kRotatedLm2}) {
    const Round round = MakeRound(fragment, 2, Leg(up));
    const MergeSettings settings = {kOuter, Leg(CodecId::kFloat32), 0.0f};
    const Result result = RunMerge(fragment, round, settings);
    EXPECT_EQ(result.chunks.size(), 9u);
    ExpectEqualsReplay(fragment, round, settings, result);
  }
}

TEST(Merge, WithOneScaleForAWholeChunkIsTheCallersBug) {
  const core::Fragment fragment = MakeFragment({300});
  const Round round = MakeRound(fragment, 1, Leg(CodecId::kInt4));
  EXPECT_DEATH(RunMerge(fragment, round, {kOuter, Leg(CodecId::kOnebitAdamSign)}), "CHECK failed");
}

TEST(Merge, SitesOutOfOrderAreTheCallersBug) {
  const core::Fragment fragment = MakeFragment({300});
  Round round = MakeRound(fragment, 2, Leg(CodecId::kInt4));
  std::swap(round.inputs[0], round.inputs[1]);
  EXPECT_DEATH(RunMerge(fragment, round, {}), "CHECK failed");
  round.inputs[1].site = round.inputs[0].site;
  EXPECT_DEATH(RunMerge(fragment, round, {}), "CHECK failed");
}

// 2^-25 is rounded away when added to 1, and is not when added to what −1 left of it: the order is part of the result.
TEST(Merge, SiteOrderDecidesTheLastBit) {
  const core::Fragment fragment = MakeFragment({1});
  const auto anchor_of = [&](const std::vector<float>& values) {
    Round round;
    round.views.resize(values.size());
    for (float value : values) {
      round.chunks.push_back({*codecs::EncodeChunk({CodecId::kFloat32, 0, 1}, std::vector<float>{value}, {})});
    }
    for (size_t m = 0; m < values.size(); ++m) {
      round.views[m] = ParseAll(round.chunks[m]);
      round.inputs.push_back({std::string(1, static_cast<char>('a' + m)), 1.0f, round.views[m]});
    }
    FragmentState state = {0, core::AlignedFloats(4096), core::AlignedFloats(4096), {}};
    Merge(fragment, round.inputs, {{1.0f, 0.0f}, Leg(CodecId::kFloat32), 0.0f}, state, [](std::string) {});
    return state.anchor[0];
  };
  EXPECT_EQ(anchor_of({1.0f, 0x1p-25f, -1.0f}), 0.0f);
  EXPECT_EQ(anchor_of({1.0f, -1.0f, 0x1p-25f}), -0x1p-25f);
}

TEST(Merge, IncompleteContributionIsTheCallersBug) {
  const core::Fragment fragment = MakeFragment({4096, 10, 10});
  for (size_t missing : {0, 1, 2}) {
    Round round = MakeRound(fragment, 1, Leg(CodecId::kInt4));
    round.views[0].erase(round.views[0].begin() + missing);
    round.inputs[0].chunks = round.views[0];
    EXPECT_DEATH(RunMerge(fragment, round, {}), "CHECK failed") << missing;
  }
}

TEST(NormalizedWeights, AreSharesComputedInDouble) {
  const std::vector<float> weights = NormalizedWeights(std::vector<double>{1, 2, 5});
  EXPECT_EQ(weights, (std::vector<float>{0.125f, 0.25f, 0.625f}));
  EXPECT_EQ(NormalizedWeights(std::vector<double>{3, 3, 3})[0], static_cast<float>(1.0 / 3));
  EXPECT_EQ(NormalizedWeights(std::vector<double>{1e300, 1}), (std::vector<float>{1.0f, 0.0f}));
}

const std::vector<ChunkSpan> kPlan = {{CodecId::kInt4, 0, 8192}, {CodecId::kInt4, 2, 10}, {CodecId::kInt4, 3, 300}};

std::string Chunk(const ChunkSpan& span, float value = 1.0f) {
  return *codecs::EncodeChunk(span, std::vector<float>(span.values, value), {});
}

TEST(Contribution, IsCompleteWhenAllChunksCameInWhateverOrder) {
  Contribution contribution(kPlan);
  EXPECT_THAT(contribution.Missing(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[2])).ok());
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[0])).ok());
  EXPECT_THAT(contribution.Missing(), ElementsAre(1));
  EXPECT_FALSE(contribution.complete());
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[1])).ok());
  EXPECT_THAT(contribution.Missing(), IsEmpty());
  EXPECT_TRUE(contribution.complete());
  const std::vector<codecs::ChunkView> views = contribution.Views();
  ASSERT_EQ(views.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(views[i].span(), kPlan[i]);
}

TEST(Contribution, RepeatedChunkIsIgnored) {
  Contribution contribution({kPlan[1]});
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[1], 1.0f)).ok());
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[1], 2.0f)).ok());
  EXPECT_EQ(contribution.chunks()[0], Chunk(kPlan[1], 1.0f));
}

TEST(Contribution, CompressedChunkIsTheSameAsThePlainOne) {
  Contribution contribution(kPlan);
  for (const ChunkSpan& span : kPlan) {
    const std::string compressed = codecs::CompressChunk(Chunk(span));
    EXPECT_LT(compressed.size(), Chunk(span).size());
    EXPECT_TRUE(contribution.Add(compressed).ok());
  }
  ASSERT_TRUE(contribution.complete());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(contribution.chunks()[i] == Chunk(kPlan[i])) << i;
}

TEST(Contribution, DamagedCompressedChunkIsRefusedAndNothingChanges) {
  Contribution contribution(kPlan);
  const std::string compressed = codecs::CompressChunk(Chunk(kPlan[0]));
  std::string flipped = compressed;
  flipped.back() ^= 1;
  EXPECT_THAT(std::string(contribution.Add(flipped).message()), HasSubstr("hash"));
  EXPECT_FALSE(contribution.Add(compressed.substr(0, compressed.size() - 1)).ok());
  EXPECT_FALSE(contribution.Add(codecs::CompressChunk(Chunk({CodecId::kInt4, 1, 4096}))).ok());  // not planned
  EXPECT_THAT(contribution.Missing(), ElementsAre(0, 1, 2));
}

TEST(Contribution, ChunkWithTheRotationOfAnotherFragmentIsRefused) {
  Contribution contribution({{CodecId::kRotatedLm4, 0, 300, /*rotation_seed=*/1}});
  EXPECT_FALSE(contribution.Add(Chunk({CodecId::kRotatedLm4, 0, 300, 2})).ok());
  EXPECT_TRUE(contribution.Add(Chunk({CodecId::kRotatedLm4, 0, 300, 1})).ok());
}

TEST(Contribution, ChunkThatWasNotPlannedIsRefusedAndNothingChanges) {
  Contribution contribution(kPlan);
  const auto refusal = [&](const ChunkSpan& span) { return std::string(contribution.Add(Chunk(span)).message()); };
  EXPECT_THAT(refusal({CodecId::kInt4, 1, 4096}), HasSubstr("got int4, 4096 values from unit 1"));
  EXPECT_THAT(refusal({CodecId::kInt4, 0, 4096}), HasSubstr("expected int4, 8192 values from unit 0"));
  EXPECT_THAT(refusal({CodecId::kInt8, 0, 8192}), HasSubstr("got int8, 8192 values"));
  EXPECT_THAT(refusal({CodecId::kInt4, 99, 1}), HasSubstr("unexpected chunk: int4, 1 values from unit 99"));
  std::string flipped = Chunk(kPlan[0]);
  flipped[200] ^= 1;
  EXPECT_THAT(std::string(contribution.Add(flipped).message()), HasSubstr("hash"));
  EXPECT_THAT(contribution.Missing(), ElementsAre(0, 1, 2));
}

// Merging on several threads: what they take, and that none of it shows in the result.

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
