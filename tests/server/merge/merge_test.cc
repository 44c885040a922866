#include "server/merge/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "codecs/compression.h"
#include "core/limits.h"
#include "tests/server/merge/merge_replay.h"

namespace causeway::server {
namespace {

using codecs::ChunkSpan;
using codecs::ChunkView;
using core::CodecId;
using core::TensorKind;

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

}  // namespace
}  // namespace causeway::server
