#include "server/merge/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "core/limits.h"
#include "core/random.h"

namespace causeway::server {
namespace {

using codecs::ChunkSpan;
using codecs::ChunkView;
using core::CodecId;

const std::vector<int64_t> kSizes = {5, 20'000, 4096, 4097};  // tiles of 4 units end inside and at the end of tensors

core::Fragment MakeFragment(const std::vector<int64_t>& sizes = kSizes) {
  core::Manifest manifest;
  std::vector<int> all;
  for (int64_t size : sizes) {
    all.push_back(static_cast<int>(manifest.size()));
    manifest.push_back({std::string(1, static_cast<char>('a' + all.back())), {size}});
  }
  return core::FragmentMap(manifest, {all}).fragment(0);
}

// Uniform in [−scale, scale), padding zero.
std::vector<float> RandomPadded(const core::Fragment& fragment, uint64_t seed, double scale) {
  std::vector<float> values(fragment.padded_values(), 0.0f);
  for (const core::TensorPlace& tensor : fragment.tensors) {
    for (int64_t i = 0; i < tensor.values; ++i) {
      const int64_t at = tensor.first_unit * core::kUnitValues + i;
      values[at] = static_cast<float>(scale * (2 * core::UnitInterval(core::HashCombine(seed, at)) - 1));
    }
  }
  return values;
}

FragmentState RandomState(const core::Fragment& fragment, float feedback_down) {
  FragmentState state = {7, RandomPadded(fragment, 1, 1.0), RandomPadded(fragment, 2, 0.1), {}};
  if (feedback_down > 0) state.residual = RandomPadded(fragment, 3, 0.01);
  return state;
}

// Contributions that own their bytes, from sites "a", "b", …
struct Round {
  std::vector<std::vector<std::string>> chunks;
  std::vector<std::vector<ChunkView>> views;
  std::vector<MergeInput> inputs;
};

// `units_per_chunk` 0 takes the plan of PlanChunks.
Round MakeRound(const core::Fragment& fragment, int sites, CodecId up, int64_t units_per_chunk = 0) {
  Round round;
  round.views.resize(sites);
  std::vector<double> weights;
  for (int m = 0; m < sites; ++m) weights.push_back(1 + m);
  const std::vector<float> lambda = NormalizedWeights(weights);
  for (int m = 0; m < sites; ++m) {
    std::vector<ChunkSpan> plan = codecs::PlanChunks(fragment, up);
    if (units_per_chunk > 0) {
      plan.clear();
      for (const core::TensorPlace& tensor : fragment.tensors) {
        for (int64_t unit = 0; unit < tensor.units(); unit += units_per_chunk) {
          const int64_t left = tensor.values - unit * core::kUnitValues;
          plan.push_back({up, tensor.first_unit + unit, std::min(left, units_per_chunk * core::kUnitValues)});
        }
      }
    }
    const std::vector<float> values = RandomPadded(fragment, 100 + m, 0.5);
    round.chunks.emplace_back();
    for (const ChunkSpan& span : plan) {
      round.chunks.back().push_back(
          *codecs::EncodeChunk(span, std::span(values).subspan(span.first_value(), span.values), {}));
    }
    for (const std::string& chunk : round.chunks.back()) round.views[m].push_back(*ChunkView::Parse(chunk));
    round.inputs.push_back({std::string(1, static_cast<char>('a' + m)), lambda[m], round.views[m]});
  }
  return round;
}

struct Result {
  FragmentState state;
  std::vector<std::string> chunks;
  uint64_t digest = 0;
};

Result RunMerge(const core::Fragment& fragment, const Round& round, const MergeSettings& settings) {
  Result result = {RandomState(fragment, settings.feedback_down), {}, 0};
  result.digest = Merge(fragment, round.inputs, settings, result.state,
                        [&](std::string chunk) { result.chunks.push_back(std::move(chunk)); });
  return result;
}

std::vector<float> DecodeAll(const std::vector<ChunkView>& views, int64_t padded_values) {
  std::vector<float> values(padded_values, 0.0f);
  for (const ChunkView& view : views) {
    view.Decode(view.span().first_unit, std::span(values).subspan(view.span().first_value(), view.span().values));
  }
  return values;
}

std::vector<ChunkView> ParseAll(const std::vector<std::string>& chunks) {
  std::vector<ChunkView> views;
  for (const std::string& chunk : chunks) views.push_back(*ChunkView::Parse(chunk));
  return views;
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& expected, const char* what) {
  const auto same = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  ASSERT_EQ(got.size(), expected.size()) << what;
  const auto [at, wanted] = std::mismatch(got.begin(), got.end(), expected.begin(), same);
  ASSERT_TRUE(at == got.end()) << what << " at " << at - got.begin() << ": expected " << *wanted << ", got " << *at;
}

// PROTOCOL.md section 1, value by value over the whole fragment, without tiles: what Merge must equal.
void ExpectEqualsReplay(const core::Fragment& fragment, const Round& round, const MergeSettings& settings,
                        const Result& result) {
  const FragmentState before = RandomState(fragment, settings.feedback_down);
  const int64_t n = fragment.padded_values();
  std::vector<std::vector<float>> d;
  for (const auto& views : round.views) d.push_back(DecodeAll(views, n));
  const std::vector<float> g = DecodeAll(ParseAll(result.chunks), n);
  std::vector<float> x(n), v(n), w(n), residual(before.residual.size());
  for (int64_t i = 0; i < n; ++i) {
    float acc = 0;
    for (size_t m = 0; m < d.size(); ++m) acc = fmaf(round.inputs[m].weight, d[m][i], acc);
    x[i] = before.residual.empty() ? acc : fmaf(settings.feedback_down, before.residual[i], acc);
    if (!residual.empty()) residual[i] = x[i] - g[i];
    v[i] = fmaf(settings.outer.momentum, before.momentum[i], g[i]);
    const float s = fmaf(settings.outer.momentum, v[i], g[i]);
    w[i] = fmaf(-settings.outer.lr, s, before.anchor[i]);
  }
  // The update is what the codec makes of x: encoded alone, chunk by chunk, it has the same bytes.
  const std::vector<ChunkSpan> plan = codecs::PlanChunks(fragment, settings.down);
  ASSERT_EQ(plan.size(), result.chunks.size());
  for (size_t c = 0; c < plan.size(); ++c) {
    const std::vector<float> zero(plan[c].values, 0.0f);
    std::vector<float> unused(plan[c].values);
    codecs::ChunkFeedback feedback;  // a zero residual, so that `sign` takes the gain it has with feedback
    if (settings.feedback_down > 0) feedback = {settings.feedback_down, zero, unused};
    const std::span<const float> values = std::span(x).subspan(plan[c].first_value(), plan[c].values);
    ASSERT_EQ(result.chunks[c], *codecs::EncodeChunk(plan[c], values, feedback)) << "chunk " << c;
  }
  ExpectSameBits(result.state.momentum, v, "v");
  ExpectSameBits(result.state.anchor, w, "W");
  ExpectSameBits(result.state.residual, residual, "residual");
  EXPECT_EQ(result.state.version, before.version + 1);
  EXPECT_EQ(result.digest, result.state.Digest());
}

class MergeWith : public ::testing::TestWithParam<std::tuple<CodecId, CodecId>> {};

TEST_P(MergeWith, AnyNumberOfSitesEqualsTheScalarReplay) {
  const auto [up, down] = GetParam();
  const core::Fragment fragment = MakeFragment();
  for (int sites : {1, 2, 3, 7}) {
    const Round round = MakeRound(fragment, sites, up);
    for (float feedback : {0.0f, 1.0f, 0.9f}) {
      const MergeSettings settings = {{0.7f, 0.9f}, down, feedback};
      SCOPED_TRACE(testing::Message() << sites << " sites, feedback " << feedback);
      ExpectEqualsReplay(fragment, round, settings, RunMerge(fragment, round, settings));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(UpAndDown, MergeWith,
                         ::testing::Combine(::testing::ValuesIn(core::kAllCodecs),
                                            ::testing::ValuesIn(core::kAllCodecs)),
                         [](const auto& test) {
                           return std::string(core::CodecName(std::get<0>(test.param))) + "_" +
                                  core::CodecName(std::get<1>(test.param));
                         });

TEST(Merge, BoundariesOfContributionsDoNotMatter) {
  const core::Fragment fragment = MakeFragment();
  const MergeSettings settings = {{0.7f, 0.9f}, CodecId::kInt4, 1.0f};
  const Result planned = RunMerge(fragment, MakeRound(fragment, 3, CodecId::kInt8), settings);
  for (int64_t units_per_chunk : {1, 3, 5, 100}) {
    const Result other = RunMerge(fragment, MakeRound(fragment, 3, CodecId::kInt8, units_per_chunk), settings);
    EXPECT_EQ(other.chunks, planned.chunks) << units_per_chunk;
    EXPECT_EQ(other.digest, planned.digest) << units_per_chunk;
  }
}

TEST(Merge, UpdateOfSeveralChunksEqualsTheReplay) {
  const core::Fragment fragment = MakeFragment({600'000, 10});  // three float32 chunks, then one
  const Round round = MakeRound(fragment, 2, CodecId::kInt4);
  const MergeSettings settings = {{0.7f, 0.9f}, CodecId::kFloat32, 0.0f};
  const Result result = RunMerge(fragment, round, settings);
  EXPECT_EQ(result.chunks.size(), 4u);
  ExpectEqualsReplay(fragment, round, settings, result);
}

TEST(Merge, PaddingStaysZero) {
  const core::Fragment fragment = MakeFragment({10, 5000});
  const Result result =
      RunMerge(fragment, MakeRound(fragment, 2, CodecId::kSign), {{0.7f, 0.9f}, CodecId::kSign, 1.0f});
  for (const auto& values : {result.state.anchor, result.state.momentum, result.state.residual}) {
    for (size_t i = 0; i < values.size(); ++i) {
      const bool padding = (i >= 10 && i < 4096) || i >= 4096 + 5000;
      if (padding) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), 0u) << i;
      }
    }
  }
}

TEST(Merge, SumsBeyondTheCodecsRangeAreClampedAndTheMergeGoesOn) {
  const core::Fragment fragment = MakeFragment({300});
  const std::vector<float> huge(300, std::nextafter(core::kMaxMagnitude, 0.0f));
  const std::string chunk = *codecs::EncodeChunk({CodecId::kFloat32, 0, 300}, huge, {});
  const std::vector<ChunkView> views = {*ChunkView::Parse(chunk)};
  const std::vector<MergeInput> inputs = {{"a", 1.0f, views}};
  for (CodecId down : core::kAllCodecs) {
    FragmentState state = RandomState(fragment, 1.0f);
    std::fill_n(state.residual.begin(), 300, huge[0]);
    std::string update;
    Merge(fragment, inputs, {{0.7f, 0.9f}, down, 1.0f}, state, [&](std::string bytes) { update = std::move(bytes); });
    ASSERT_TRUE(ChunkView::Parse(update).ok());
    const std::vector<float> g = DecodeAll({*ChunkView::Parse(update)}, 4096);
    for (int i = 0; i < 300; ++i) {
      ASSERT_GT(g[i], 0.99f * huge[0]);
      ASSERT_EQ(state.residual[i], huge[0] - g[i]);
    }
  }
}

TEST(Merge, SitesOutOfOrderAreTheCallersBug) {
  const core::Fragment fragment = MakeFragment({300});
  Round round = MakeRound(fragment, 2, CodecId::kInt4);
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
    FragmentState state = {0, std::vector<float>(4096), std::vector<float>(4096), {}};
    Merge(fragment, round.inputs, {{1.0f, 0.0f}, CodecId::kFloat32, 0.0f}, state, [](std::string) {});
    return state.anchor[0];
  };
  EXPECT_EQ(anchor_of({1.0f, 0x1p-25f, -1.0f}), 0.0f);
  EXPECT_EQ(anchor_of({1.0f, -1.0f, 0x1p-25f}), -0x1p-25f);
}

TEST(Merge, IncompleteContributionIsTheCallersBug) {
  const core::Fragment fragment = MakeFragment({4096, 10, 10});
  for (size_t missing : {0, 1, 2}) {
    Round round = MakeRound(fragment, 1, CodecId::kInt4);
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
