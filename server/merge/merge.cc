#include "server/merge/merge.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codecs/chunk_writer.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/multiversion.h"

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

  // sum ← fma(λ, d, sum) over the tile. Tiles come in unit order.
  void DecodeAdd(const Tile& tile, std::span<float> sum) {
    int64_t at = tile.first_value();
    while (at < tile.end_value()) {
      CHECK(next_ < chunks_.size());
      const codecs::ChunkSpan& span = chunks_[next_].span();
      const int64_t chunk_end = span.first_value() + span.values;
      const int64_t end = std::min(chunk_end, tile.end_value());
      CHECK(span.first_value() <= at && at < end);  // a gap, or chunks out of order
      chunks_[next_].DecodeAdd(at / core::kUnitValues, weight_, sum.subspan(at - tile.first_value(), end - at));
      if (end == chunk_end) ++next_;
      at = end;
    }
  }

  bool at_end() const { return next_ == chunks_.size(); }

 private:
  const float weight_;
  const std::span<const codecs::ChunkView> chunks_;
  size_t next_ = 0;
};

// x ← fma(β, ē, acc), for β > 0.
CAUSEWAY_MULTIVERSION
void AddFeedback(float beta, std::span<const float> residual, std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::fma(beta, residual[i], x[i]);
}

// Brings x into the codecs' range, so that a merge cannot fail half-way. Only sums of absurd contributions are beyond.
CAUSEWAY_MULTIVERSION
void Saturate(std::span<float> x) {
  constexpr float kLargest = 0x1.fffffep99f;  // the last float below core::kMaxMagnitude
  static_assert(kLargest < core::kMaxMagnitude);
  for (float& value : x) {
    const float up = value < kLargest ? value : kLargest;
    value = up > -kLargest ? up : -kLargest;
  }
}

// ē ← x − g
CAUSEWAY_MULTIVERSION
void KeepResidual(std::span<const float> x, std::span<const float> g, std::span<float> residual) {
  for (size_t i = 0; i < x.size(); ++i) residual[i] = x[i] - g[i];
}

// One tile: contributions in, encoded bytes, W, v and ē out. Returns the digest of the tile's units.
uint64_t MergeTile(const Tile& tile, std::vector<ContributionReader>& contributions, const MergeSettings& settings,
                   FragmentState& state, codecs::ChunkWriter& update) {
  std::array<float, kTileValues> x_buffer, g_buffer;
  const std::span<float> x(x_buffer.data(), tile.values);
  const std::span<float> g(g_buffer.data(), tile.values);
  const auto of_tile = [&](std::vector<float>& values) {
    return std::span<float>(values).subspan(tile.first_value(), tile.values);
  };

  std::fill(x.begin(), x.end(), 0.0f);
  for (ContributionReader& contribution : contributions) contribution.DecodeAdd(tile, x);
  const bool with_feedback = settings.feedback_down > 0;
  if (with_feedback) AddFeedback(settings.feedback_down, of_tile(state.residual), x);
  Saturate(x);
  update.Append(x, g);
  if (with_feedback) KeepResidual(x, g, of_tile(state.residual));
  core::OuterStep(settings.outer, g, of_tile(state.momentum), of_tile(state.anchor));
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
      digest += MergeTile(tile, contributions, settings, state, update);
    }
    emit(update.Finish());
  }
  for (const ContributionReader& contribution : contributions) CHECK(contribution.at_end());
  ++state.version;
  return digest;
}

}  // namespace causeway::server
