#include "server/merge/radial_directional.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codecs/block_math.h"
#include "core/aligned.h"
#include "core/limits.h"
#include "core/multiversion.h"

namespace causeway::server {
namespace {

CAUSEWAY_MULTIVERSION
double AddSquares(const float* blocks, int64_t num_blocks, double sum) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* values = blocks + block * core::kBlockValues;
    sum += codecs::SumOverBlock<double>([values](int i, double lane) {
      const double value = values[i];
      return lane + value * value;
    });
  }
  return sum;
}

// ‖Σ weight d‖ over the tensor, of readers that may read on from its first unit.
double NormOfSum(const core::TensorPlace& tensor, std::span<ContributionReader> contributions,
                 std::span<const float> weights) {
  alignas(core::kCacheLineBytes) std::array<float, kTileValues> buffer;
  double squares = 0;
  for (int64_t unit = 0; unit < tensor.units(); unit += kTileUnits) {
    const Tile tile = TileAt(tensor.first_unit, tensor.values, unit);
    const std::span<float> blocks(buffer.data(), tile.values_in_blocks());
    std::fill(blocks.begin(), blocks.end(), 0.0f);
    for (size_t m = 0; m < contributions.size(); ++m) contributions[m].DecodeAdd(tile, weights[m], blocks);
    squares = AddSquares(blocks.data(), core::BlocksFor(tile.values), squares);
  }
  return std::sqrt(squares);
}

double Norm(const core::TensorPlace& tensor, ContributionReader contribution) {
  const float one = 1;
  return NormOfSum(tensor, std::span(&contribution, 1), std::span(&one, 1));
}

// The sites that have a direction.
struct Counted {
  std::vector<size_t> sites;
  std::vector<double> norms;  // n_m, of `sites`
  double weight = 0;          // R
  double length = 0;          // L
};

Counted Count(const core::TensorPlace& tensor, std::span<const ContributionReader> contributions,
              std::span<const float> weights) {
  Counted counted;
  for (size_t m = 0; m < contributions.size(); ++m) {
    if (weights[m] == 0) continue;
    const double norm = Norm(tensor, contributions[m]);
    if (norm < core::kMinScale) continue;
    counted.sites.push_back(m);
    counted.norms.push_back(norm);
    counted.weight += weights[m];
    counted.length += weights[m] * norm;
  }
  return counted;
}

}  // namespace

std::vector<float> RadialDirectionalWeights(const core::TensorPlace& tensor,
                                            std::span<const ContributionReader> contributions,
                                            std::span<const float> weights) {
  const std::vector<float> average(weights.begin(), weights.end());
  if (tensor.kind == core::TensorKind::kEmbedding || contributions.size() < 2) return average;
  const Counted counted = Count(tensor, contributions, weights);
  if (counted.sites.size() < 2) return average;

  std::vector<ContributionReader> readers;
  std::vector<double> per_norm;  // λ_m / R / n_m
  std::vector<float> directions;
  for (size_t i = 0; i < counted.sites.size(); ++i) {
    readers.push_back(contributions[counted.sites[i]]);
    per_norm.push_back(weights[counted.sites[i]] / counted.weight / counted.norms[i]);
    directions.push_back(static_cast<float>(per_norm.back()));
  }
  const double mean_direction = NormOfSum(tensor, readers, directions);
  if (mean_direction < kSmallestMeanDirection) return average;
  const double stretch = counted.length / mean_direction;
  if (stretch >= core::kMaxMagnitude) return average;

  std::vector<float> result(weights.size(), 0.0f);
  for (size_t i = 0; i < counted.sites.size(); ++i) {
    const double weight = stretch * per_norm[i];
    if (weight >= core::kMaxMagnitude) return average;
    result[counted.sites[i]] = static_cast<float>(weight);
  }
  return result;
}

}  // namespace causeway::server
