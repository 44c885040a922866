#include "server/merge/merge.h"

#include <algorithm>
#include <array>
#include <optional>

#include "codecs/chunk_writer.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "server/merge/contribution_reader.h"
#include "server/merge/radial_directional.h"

namespace causeway::server {
namespace {

// The contributions of a round, each read as far as the tile that comes next, and what they weigh in its tensor.
struct WeightedReaders {
  std::vector<ContributionReader> readers;
  std::vector<float> weights;
};

// One tile: contributions in, encoded bytes, W, v and ē out. Returns the digest of the tile's units.
uint64_t MergeTile(const Tile& tile, const codecs::ChunkSpan& chunk, WeightedReaders& contributions,
                   const MergeSettings& settings, FragmentState& state, codecs::ChunkWriter& update) {
  alignas(core::kCacheLineBytes) std::array<float, kTileValues> x_buffer, g_buffer;
  const std::span<float> blocks(x_buffer.data(), tile.values_in_blocks());
  const std::span<float> g(g_buffer.data(), tile.values);
  const auto of_tile = [&](core::AlignedFloats& values, int64_t count) {
    return std::span<float>(values).subspan(tile.first_value(), count);
  };

  const std::optional<uint64_t> rotated = contributions.readers.front().rotation_seed();
  std::fill(blocks.begin(), blocks.end(), 0.0f);
  for (size_t m = 0; m < contributions.readers.size(); ++m) {
    contributions.readers[m].DecodeAdd(tile, contributions.weights[m], blocks);
  }
  const int64_t residual_values = codecs::ResidualValues({chunk.codec, 0, tile.values});
  const bool stays_rotated = rotated && codecs::GetCodec(chunk.codec).rotates();
  if (rotated && !stays_rotated) codecs::Unrotate({*rotated, tile.first_unit * core::kBlocksPerUnit}, blocks);
  codecs::ChunkFeedback feedback;
  if (settings.feedback_down > 0) {
    const std::span<float> residual = of_tile(state.residual, residual_values);
    feedback = {settings.feedback_down, residual, residual};
  }
  update.AppendMean(stays_rotated ? blocks : blocks.first(tile.values), stays_rotated, feedback, g);
  core::OuterStep(settings.outer, g, of_tile(state.momentum, tile.values), of_tile(state.anchor, tile.values));
  const auto units = std::span<const float>(state.anchor).subspan(tile.first_value(), tile.padded_values());
  return core::DigestUnits(units, tile.first_unit);
}

void CheckArguments(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
                    const FragmentState& state) {
  CHECK(!inputs.empty());
  for (size_t i = 1; i < inputs.size(); ++i) CHECK(inputs[i - 1].site < inputs[i].site);
  for (const MergeInput& input : inputs) CHECK(input.weight >= 0 && input.weight <= 1);
  const size_t padded = fragment.padded_values();
  CHECK(state.anchor.size() == padded && state.momentum.size() == padded);
  CHECK(state.residual.size() == (settings.feedback_down > 0 ? padded : 0));
}

}  // namespace

std::vector<float> NormalizedWeights(std::span<const double> weights) {
  double sum = 0;
  for (double weight : weights) sum += weight;
  CHECK(weights.empty() || sum > 0);
  std::vector<float> normalized;
  for (double weight : weights) normalized.push_back(static_cast<float>(weight / sum));
  return normalized;
}

uint64_t Merge(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
               FragmentState& state, const std::function<void(std::string chunk)>& emit) {
  CheckArguments(fragment, inputs, settings, state);
  std::vector<float> round_weights;
  WeightedReaders contributions;
  for (const MergeInput& input : inputs) {
    round_weights.push_back(input.weight);
    contributions.readers.emplace_back(input.chunks);
  }
  contributions.weights = round_weights;
  uint64_t digest = 0;
  auto tensor = fragment.tensors.begin();
  for (const codecs::ChunkSpan& chunk : codecs::PlanChunks(fragment, settings.down)) {
    while (chunk.first_unit >= tensor->first_unit + tensor->units()) ++tensor;
    if (settings.rule == core::MergeRule::kRadialDirectional && chunk.first_unit == tensor->first_unit) {
      contributions.weights = RadialDirectionalWeights(*tensor, contributions.readers, round_weights);
    }
    codecs::ChunkWriter update(chunk, codecs::GainFor(settings.feedback_down));
    for (int64_t unit = 0; unit < chunk.units(); unit += kTileUnits) {
      const Tile tile = TileAt(chunk.first_unit, chunk.values, unit);
      digest += MergeTile(tile, chunk, contributions, settings, state, update);
    }
    emit(settings.zstd ? codecs::CompressChunk(update.Finish()) : update.Finish());
  }
  for (const ContributionReader& contribution : contributions.readers) CHECK(contribution.at_end());
  ++state.version;
  return digest;
}

}  // namespace causeway::server
