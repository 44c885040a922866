#include "tests/server/merge/merge_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "codecs/chunk_writer.h"
#include "codecs/compression.h"
#include "core/random.h"
#include "tests/codecs/by_specification.h"
#include "tests/server/merge/radial_by_specification.h"

namespace causeway::server {
namespace {

using codecs::ChunkSpan;
using codecs::ChunkView;
using core::CodecId;

constexpr uint64_t kRunSeed = 17;
constexpr float kLargest = 0x1.fffffep99f;

int64_t InBlocks(int64_t values) { return core::BlocksFor(values) * core::kBlockValues; }

float RandomValue(uint64_t seed, int64_t at, double scale) {
  return static_cast<float>(scale * (2 * core::UnitInterval(core::HashCombine(seed, at)) - 1));
}

void ExpectSameBits(std::span<const float> got, std::span<const float> expected, const char* what) {
  const auto same = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  ASSERT_EQ(got.size(), expected.size()) << what;
  const auto [at, wanted] = std::mismatch(got.begin(), got.end(), expected.begin(), same);
  ASSERT_TRUE(at == got.end()) << what << " at " << at - got.begin() << ": expected " << *wanted << ", got " << *at;
}

std::vector<ChunkSpan> EvenPlan(const core::Fragment& fragment, const codecs::LegCodec& leg, int64_t units_per_chunk) {
  std::vector<ChunkSpan> plan;
  for (const core::TensorPlace& tensor : fragment.tensors) {
    const CodecId codec = leg.CodecOf(tensor);
    const uint64_t seed = Rotates(codec) ? codecs::RotationSeed(leg.run_seed, fragment.id) : 0;
    for (int64_t unit = 0; unit < tensor.units(); unit += units_per_chunk) {
      const int64_t left = tensor.values - unit * core::kUnitValues;
      plan.push_back({codec, tensor.first_unit + unit, std::min(left, units_per_chunk * core::kUnitValues), seed});
    }
  }
  return plan;
}

// One tensor of a fragment, merged by the book.
struct Replayed {
  std::vector<float> v, w, residual;
  codecs::Specified update;
};

class TensorReplay {
 public:
  TensorReplay(const core::Fragment& fragment, const core::TensorPlace& tensor, const Round& round,
               const MergeSettings& settings)
      : tensor_(tensor),
        round_(round),
        settings_(settings),
        up_(round.up.CodecOf(tensor)),
        down_(settings.down.CodecOf(tensor)),
        rotation_{codecs::RotationSeed(kRunSeed, fragment.id), tensor.first_unit * core::kBlocksPerUnit} {}

  Replayed Run(const FragmentState& before) const {
    std::vector<float> x = Mean();
    Replayed result;
    for (size_t i = 0; settings_.feedback_down > 0 && i < x.size(); ++i) {
      x[i] = std::fma(settings_.feedback_down, before.residual[At(i)], x[i]);
    }
    for (float& value : x) value = std::clamp(value, -kLargest, kLargest);
    result.update = codecs::BySpecification(down_, x, codecs::GainFor(settings_.feedback_down));
    std::vector<float> g = result.update.decoded;
    for (size_t i = 0; settings_.feedback_down > 0 && i < x.size(); ++i) result.residual.push_back(x[i] - g[i]);
    if (Rotates(down_)) g = codecs::RotatedBackBySpecification(rotation_, g);
    const bool mean = tensor_.kind == core::TensorKind::kBuffer;
    const float lr = mean ? 1 : settings_.outer.lr, momentum = mean ? 0 : settings_.outer.momentum;
    for (int64_t i = 0; i < tensor_.values; ++i) {
      result.v.push_back(std::fma(momentum, before.momentum[At(i)], g[i]));
      const float s = std::fma(momentum, result.v[i], g[i]);
      result.w.push_back(std::fma(-lr, s, before.anchor[At(i)]));
    }
    return result;
  }

 private:
  int64_t At(int64_t i) const { return tensor_.first_unit * core::kUnitValues + i; }

  // acc = Σ w_m d_m in the up codec's domain, then brought to the down codec's.
  std::vector<float> Mean() const {
    std::vector<std::vector<float>> d;
    std::vector<float> weights;
    for (const MergeInput& input : round_.inputs) {
      d.push_back(DecodeInDomain(tensor_, input));
      weights.push_back(input.weight);
    }
    const bool averages = settings_.rule == core::MergeRule::kAverage || tensor_.kind == core::TensorKind::kEmbedding ||
                          tensor_.kind == core::TensorKind::kBuffer;
    if (!averages) weights = RadialBySpecification(d, weights);
    std::vector<float> acc(d[0].size(), 0.0f);
    for (size_t m = 0; m < d.size(); ++m) {
      for (size_t i = 0; i < acc.size(); ++i) acc[i] = std::fma(weights[m], d[m][i], acc[i]);
    }
    if (Rotates(up_) && !Rotates(down_)) acc = codecs::RotatedBackBySpecification(rotation_, acc);
    if (Rotates(down_) && !Rotates(up_)) acc = codecs::RotatedBySpecification(rotation_, acc);
    if (!Rotates(down_)) acc.resize(tensor_.values);
    return acc;
  }

  const core::TensorPlace& tensor_;
  const Round& round_;
  const MergeSettings& settings_;
  const CodecId up_, down_;
  const codecs::Rotation rotation_;
};

// A tensor in the update's chunks: scales and codes back to back, as the specification has them.
codecs::Specified Received(const core::TensorPlace& tensor, const std::vector<ChunkSpan>& plan,
                           const std::vector<std::string>& chunks) {
  codecs::Specified received;
  for (size_t c = 0; c < plan.size(); ++c) {
    const int64_t unit = plan[c].first_unit - tensor.first_unit;
    if (unit < 0 || unit >= tensor.units()) continue;
    const std::string bytes = *codecs::ExpandChunk(chunks[c]);
    EXPECT_EQ(ChunkView::Parse(bytes)->span(), plan[c]);
    const codecs::Codec& codec = codecs::GetCodec(plan[c].codec);
    const auto scales = bytes.begin() + codecs::kChunkHeaderBytes;
    const int64_t scale_bytes = codec.ScaleBytes(plan[c].values);
    const auto codes = scales + (scale_bytes + 63) / 64 * 64;
    received.scales.insert(received.scales.end(), scales, scales + scale_bytes);
    received.codes.insert(received.codes.end(), codes, codes + codec.CodeBytes(plan[c].values));
  }
  return received;
}

}  // namespace

core::Fragment MakeFragment(const std::vector<int64_t>& sizes, const std::vector<core::TensorKind>& kinds) {
  core::Manifest manifest;
  std::vector<int> all;
  for (int64_t size : sizes) {
    all.push_back(static_cast<int>(manifest.size()));
    const auto kind = kinds.empty() ? core::TensorKind::kMatrix : kinds[all.back()];
    manifest.push_back({std::string(1, static_cast<char>('a' + all.back())), {size}, kind});
  }
  return core::FragmentMap(manifest, {all}).fragment(0);
}

codecs::LegCodec Leg(CodecId codec, std::vector<core::TensorKind> exempt) { return {codec, exempt, kRunSeed}; }

std::vector<float> RandomPadded(const core::Fragment& fragment, uint64_t seed, double scale) {
  std::vector<float> values(fragment.padded_values(), 0.0f);
  for (const core::TensorPlace& tensor : fragment.tensors) {
    const int64_t begin = tensor.first_unit * core::kUnitValues;
    for (int64_t at = begin; at < begin + tensor.values; ++at) values[at] = RandomValue(seed, at, scale);
  }
  return values;
}

FragmentState RandomState(const core::Fragment& fragment, const MergeSettings& settings) {
  FragmentState state = {.version = 7};
  const auto set = [](core::AlignedFloats& to, const std::vector<float>& from) { to.assign(from.begin(), from.end()); };
  set(state.anchor, RandomPadded(fragment, 1, 1.0));
  set(state.momentum, RandomPadded(fragment, 2, 0.1));
  if (settings.feedback_down == 0) return state;
  state.residual.assign(fragment.padded_values(), 0.0f);
  for (const core::TensorPlace& tensor : fragment.tensors) {
    const bool rotates = Rotates(settings.down.CodecOf(tensor));
    const int64_t begin = tensor.first_unit * core::kUnitValues;
    const int64_t end = begin + (rotates ? InBlocks(tensor.values) : tensor.values);
    for (int64_t at = begin; at < end; ++at) state.residual[at] = RandomValue(3, at, 0.01);
  }
  return state;
}

Round MakeRoundOf(const core::Fragment& fragment, const std::vector<std::vector<float>>& steps,
                  const std::vector<double>& weights, const codecs::LegCodec& up, int64_t units_per_chunk) {
  Round round = {.up = up};
  round.views.resize(steps.size());
  const std::vector<float> lambda = NormalizedWeights(weights);
  const std::vector<ChunkSpan> plan =
      units_per_chunk > 0 ? EvenPlan(fragment, up, units_per_chunk) : codecs::PlanChunks(fragment, up);
  for (size_t m = 0; m < steps.size(); ++m) {
    round.chunks.emplace_back();
    for (const ChunkSpan& span : plan) {
      const std::span<const float> part = std::span(steps[m]).subspan(span.first_value(), span.values);
      round.chunks.back().push_back(*codecs::EncodeChunk(span, part, {}));
    }
    round.views[m] = ParseAll(round.chunks.back());
    round.inputs.push_back({std::string(1, static_cast<char>('a' + m)), lambda[m], round.views[m]});
  }
  return round;
}

Round MakeRound(const core::Fragment& fragment, int sites, const codecs::LegCodec& up, int64_t units_per_chunk) {
  std::vector<std::vector<float>> steps;
  std::vector<double> weights;
  for (int m = 0; m < sites; ++m) {
    steps.push_back(RandomPadded(fragment, 100 + m, 0.5));
    weights.push_back(1 + m);
  }
  return MakeRoundOf(fragment, steps, weights, up, units_per_chunk);
}

Result RunMerge(const core::Fragment& fragment, const Round& round, const MergeSettings& settings) {
  Result result = {RandomState(fragment, settings), {}, 0, {}, {}};
  MergeResult merged = Merge(fragment, round.inputs, settings, result.state,
                             [&](std::string chunk) { result.chunks.push_back(std::move(chunk)); });
  result.digest = merged.digest;
  result.products = merged.products;
  result.cosines = std::move(merged.cosines);
  return result;
}

std::vector<ChunkView> ParseAll(const std::vector<std::string>& chunks) {
  std::vector<ChunkView> views;
  for (const std::string& chunk : chunks) views.push_back(*ChunkView::Parse(chunk));
  return views;
}

std::vector<float> DecodeAll(const std::vector<ChunkView>& views, int64_t padded_values) {
  std::vector<float> values(padded_values, 0.0f);
  for (const ChunkView& view : views) {
    view.Decode(view.span().first_unit, std::span(values).subspan(view.span().first_value(), view.span().values));
  }
  return values;
}

std::vector<float> DecodeInDomain(const core::TensorPlace& tensor, const MergeInput& input) {
  std::vector<float> d;
  for (const ChunkView& chunk : input.chunks) {
    const int64_t unit = chunk.span().first_unit - tensor.first_unit;
    if (unit < 0 || unit >= tensor.units()) continue;
    d.resize(unit * core::kUnitValues + codecs::ResidualValues(chunk.span()), 0.0f);
    chunk.DecodeAddInDomain(chunk.span().first_unit, 1.0f, std::span(d).subspan(unit * core::kUnitValues));
  }
  return d;
}

void ExpectEqualsReplay(const core::Fragment& fragment, const Round& round, const MergeSettings& settings,
                        const Result& result) {
  FragmentState expected = RandomState(fragment, settings);  // what the replay leaves alone is padding
  const std::vector<ChunkSpan> plan = codecs::PlanChunks(fragment, settings.down);
  ASSERT_EQ(result.chunks.size(), plan.size());
  for (const core::TensorPlace& tensor : fragment.tensors) {
    const Replayed replayed = TensorReplay(fragment, tensor, round, settings).Run(expected);
    const int64_t begin = tensor.first_unit * core::kUnitValues;
    std::ranges::copy(replayed.v, expected.momentum.begin() + begin);
    std::ranges::copy(replayed.w, expected.anchor.begin() + begin);
    std::ranges::copy(replayed.residual, expected.residual.begin() + begin);
    const codecs::Specified received = Received(tensor, plan, result.chunks);
    ASSERT_EQ(received.scales, replayed.update.scales) << "tensor " << tensor.tensor;
    ASSERT_EQ(received.codes, replayed.update.codes) << "tensor " << tensor.tensor;
  }
  ExpectSameBits(result.state.momentum, expected.momentum, "v");
  ExpectSameBits(result.state.anchor, expected.anchor, "W");
  ExpectSameBits(result.state.residual, expected.residual, "residual");
  EXPECT_EQ(result.state.version, expected.version + 1);
  EXPECT_EQ(result.digest, result.state.Digest());
}

}  // namespace causeway::server
