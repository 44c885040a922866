#include "server/merge/radial_directional.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "codecs/block_format.h"
#include "core/aligned.h"
#include "core/limits.h"
#include "core/multiversion.h"
#include "server/merge/work_items.h"

namespace causeway::server {
namespace {

// Σ weight d over a tensor, of some sites.
struct SumOfSteps {
  const core::TensorPlace* tensor;
  std::vector<size_t> sites;
  std::vector<float> weights;  // of `sites`
};

CAUSEWAY_MULTIVERSION
void SumSquares(const float* blocks, int64_t num_blocks, double* sums) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* values = blocks + block * core::kBlockValues;
    sums[block] = codecs::SumOverBlock<double>([values](int i, double lane) {
      const double value = values[i];
      return lane + value * value;
    });
  }
}

// Appends the sums of squares of the piece's blocks.
void AppendSquares(const SumOfSteps& sum, const Piece& piece, std::span<ContributionReader> contributions,
                   std::vector<double>& squares) {
  alignas(core::kCacheLineBytes) std::array<float, kTileValues> buffer;
  for (size_t m : sum.sites) contributions[m].SeekTo(sum.tensor->first_unit + piece.first_unit);
  for (int64_t unit = piece.first_unit; unit < piece.first_unit + piece.units; unit += kTileUnits) {
    const Tile tile = TileAt(sum.tensor->first_unit, sum.tensor->values, unit);
    const std::span<float> blocks(buffer.data(), tile.values_in_blocks());
    std::fill(blocks.begin(), blocks.end(), 0.0f);
    for (size_t i = 0; i < sum.sites.size(); ++i) contributions[sum.sites[i]].DecodeAdd(tile, sum.weights[i], blocks);
    squares.resize(squares.size() + core::BlocksFor(tile.values));
    SumSquares(blocks.data(), core::BlocksFor(tile.values),
               squares.data() + squares.size() - core::BlocksFor(tile.values));
  }
}

// ‖Σ weight d‖ of each.
std::vector<double> Norms(std::span<const SumOfSteps> sums, std::span<const ContributionReader> contributions,
                          core::ThreadTeam& threads) {
  std::vector<int64_t> units;
  for (const SumOfSteps& sum : sums) units.push_back(sum.tensor->units());
  const WorkItems items(units);
  std::vector<std::vector<ContributionReader>> readers(
      threads.threads(), std::vector<ContributionReader>(contributions.begin(), contributions.end()));
  std::vector<std::vector<double>> squares_of_item(threads.window());  // of blocks, by item mod window
  std::vector<double> norms(sums.size(), 0.0);
  threads.RunInOrder(
      items.size(),
      [&](int worker, int64_t item) {
        std::vector<double>& squares = squares_of_item[item % threads.window()];
        squares.clear();
        for (const Piece& piece : items[item]) AppendSquares(sums[piece.source], piece, readers[worker], squares);
      },
      [&](int64_t item) {
        auto square = squares_of_item[item % threads.window()].begin();
        for (const Piece& piece : items[item]) {
          const int64_t left = sums[piece.source].tensor->values - piece.first_unit * core::kUnitValues;
          const int64_t blocks = core::BlocksFor(std::min(left, piece.units * core::kUnitValues));
          norms[piece.source] = std::accumulate(square, square + blocks, norms[piece.source]);
          square += blocks;
        }
      });
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

// The sites that have a direction in a tensor.
struct Counted {
  std::vector<size_t> sites;
  std::vector<double> norms;  // n_m, of `sites`
  double weight = 0;          // R
  double length = 0;          // L

  void Add(size_t site, double site_weight, double factor, double norm) {
    sites.push_back(site);
    norms.push_back(norm);
    weight += site_weight;
    length += site_weight * factor * norm;
  }
  double PerNorm(size_t i, std::span<const float> weights) const {  // λ_m / R / n_m
    return weights[sites[i]] / weight / norms[i];
  }
};

std::vector<Counted> Count(std::span<const core::TensorPlace> tensors,
                           std::span<const ContributionReader> contributions, std::span<const float> weights,
                           std::span<const float> factors, core::ThreadTeam& threads) {
  std::vector<SumOfSteps> steps;
  for (const core::TensorPlace& tensor : tensors) {
    const bool is_mean = tensor.kind == core::TensorKind::kEmbedding || tensor.kind == core::TensorKind::kBuffer;
    if (is_mean || contributions.size() < 2) continue;
    for (size_t m = 0; m < contributions.size(); ++m) {
      if (weights[m] != 0) steps.push_back({&tensor, {m}, {1.0f}});
    }
  }
  const std::vector<double> norms = Norms(steps, contributions, threads);
  std::vector<Counted> counted(tensors.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t m = steps[i].sites.front();
    if (norms[i] >= core::kMinScale) counted[steps[i].tensor - tensors.data()].Add(m, weights[m], factors[m], norms[i]);
  }
  return counted;
}

// Computes w_m from r, or those of the average where r is degenerate.
std::vector<float> WeightsOf(const Counted& counted, double mean_direction, std::span<const float> weights,
                             const std::vector<float>& average) {
  if (mean_direction < kSmallestMeanDirection) return average;
  const double stretch = counted.length / mean_direction;
  if (stretch >= core::kMaxMagnitude) return average;
  std::vector<float> result(weights.size(), 0.0f);
  for (size_t i = 0; i < counted.sites.size(); ++i) {
    const double weight = stretch * counted.PerNorm(i, weights);
    if (weight >= core::kMaxMagnitude) return average;
    result[counted.sites[i]] = static_cast<float>(weight);
  }
  return result;
}

}  // namespace

std::vector<float> ScaledWeights(std::span<const float> weights, std::span<const float> factors) {
  std::vector<float> scaled;
  for (size_t m = 0; m < weights.size(); ++m) scaled.push_back(weights[m] * factors[m]);
  return scaled;
}

std::vector<std::vector<float>> RadialDirectionalWeights(std::span<const core::TensorPlace> tensors,
                                                         std::span<const ContributionReader> contributions,
                                                         std::span<const float> weights, std::span<const float> factors,
                                                         core::ThreadTeam& threads) {
  const std::vector<Counted> counted = Count(tensors, contributions, weights, factors, threads);
  const std::vector<float> average = ScaledWeights(weights, factors);
  std::vector<SumOfSteps> directions;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (counted[t].sites.size() < 2) continue;
    SumOfSteps& sum = directions.emplace_back(SumOfSteps{&tensors[t], counted[t].sites, {}});
    for (size_t i = 0; i < counted[t].sites.size(); ++i) {
      sum.weights.push_back(static_cast<float>(counted[t].PerNorm(i, weights)));
    }
  }
  const std::vector<double> lengths = Norms(directions, contributions, threads);
  std::vector<std::vector<float>> result(tensors.size(), average);
  for (size_t i = 0; i < directions.size(); ++i) {
    const size_t t = directions[i].tensor - tensors.data();
    result[t] = WeightsOf(counted[t], lengths[i], weights, average);
  }
  return result;
}

}  // namespace causeway::server
