#include "server/merge/merge.h"

#include <algorithm>
#include <array>
#include <optional>

#include "codecs/chunk_writer.h"
#include "codecs/compression.h"
#include "core/check.h"

namespace causeway::server {
namespace {

// Four units: W, v, ē, x and g of a tile are 5 · 64 KiB and stay in the second-level cache.
constexpr int64_t kTileUnits = 4;
constexpr int64_t kTileValues = kTileUnits * core::kUnitValues;

// Where a tile lies in the fragment: whole units, but for a tensor's end.
struct Tile {
  int64_t first_unit = 0;
  int64_t values = 0;

  int64_t first_value() const { return first_unit * core::kUnitValues; }
  int64_t end_value() const { return first_value() + values; }
  int64_t padded_values() const { return core::UnitsFor(values) * core::kUnitValues; }
};

// Walks one contribution's chunks tile by tile; its chunks may end elsewhere than the update's.
class ContributionReader {
 public:
  explicit ContributionReader(const MergeInput& input) : weight_(input.weight), chunks_(input.chunks) {}

  // sum ← fma(λ, d, sum) over the tile, in the domain of its codec: `sum` has whole blocks. Tiles come in unit order.
  void DecodeAdd(const Tile& tile, std::span<float> sum) {
    int64_t at = tile.first_value();
    while (at < tile.end_value()) {
      CHECK(next_ < chunks_.size());
      const codecs::ChunkView& chunk = chunks_[next_];
      const int64_t chunk_end = chunk.span().first_value() + chunk.span().values;
      const int64_t end = std::min(chunk_end, tile.end_value());
      CHECK(chunk.span().first_value() <= at && at < end);  // a gap, or chunks out of order
      const int64_t count = chunk.rotates() ? core::BlocksFor(end - at) * core::kBlockValues : end - at;
      chunk.DecodeAddInDomain(at / core::kUnitValues, weight_, sum.subspan(at - tile.first_value(), count));
      if (end == chunk_end) ++next_;
      at = end;
    }
  }

  // Of the tile that comes next, if its codec rotates. All contributions have the round's codec for a tensor.
  std::optional<uint64_t> rotation_seed() const {
    CHECK(next_ < chunks_.size());
    if (!chunks_[next_].rotates()) return std::nullopt;
    return chunks_[next_].span().rotation_seed;
  }
  bool at_end() const { return next_ == chunks_.size(); }

 private:
  const float weight_;
  const std::span<const codecs::ChunkView> chunks_;
  size_t next_ = 0;
};

// One tile: contributions in, encoded bytes, W, v and ē out. Returns the digest of the tile's units.
uint64_t MergeTile(const Tile& tile, const codecs::ChunkSpan& chunk, std::vector<ContributionReader>& contributions,
                   const MergeSettings& settings, FragmentState& state, codecs::ChunkWriter& update) {
  alignas(core::kCacheLineBytes) std::array<float, kTileValues> x_buffer, g_buffer;
  const int64_t in_blocks = core::BlocksFor(tile.values) * core::kBlockValues;
  const std::span<float> blocks(x_buffer.data(), in_blocks);
  const std::span<float> g(g_buffer.data(), tile.values);
  const auto of_tile = [&](core::AlignedFloats& values, int64_t count) {
    return std::span<float>(values).subspan(tile.first_value(), count);
  };

  const std::optional<uint64_t> rotated = contributions.front().rotation_seed();
  std::fill(blocks.begin(), blocks.end(), 0.0f);
  for (ContributionReader& contribution : contributions) contribution.DecodeAdd(tile, blocks);
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
  std::vector<ContributionReader> contributions(inputs.begin(), inputs.end());
  uint64_t digest = 0;
  for (const codecs::ChunkSpan& chunk : codecs::PlanChunks(fragment, settings.down)) {
    codecs::ChunkWriter update(chunk, codecs::GainFor(settings.feedback_down));
    for (int64_t unit = 0; unit < chunk.units(); unit += kTileUnits) {
      const int64_t left = chunk.values - unit * core::kUnitValues;
      const Tile tile = {chunk.first_unit + unit, std::min(left, kTileValues)};
      digest += MergeTile(tile, chunk, contributions, settings, state, update);
    }
    emit(settings.zstd ? codecs::CompressChunk(update.Finish()) : update.Finish());
  }
  for (const ContributionReader& contribution : contributions) CHECK(contribution.at_end());
  ++state.version;
  return digest;
}

}  // namespace causeway::server
