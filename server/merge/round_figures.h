// Figures of a round, measured during its merge for people to read: the merge does not depend on them.
//
//   products of the step    Σ g², Σ g v, Σ v²      g as the sites decode it, v before the step; all values
//   agreement of a site     cos(d_m, x)            x = Σ λ_m d_m, in the codec's domain; over a sample of tiles
//
// The products are made in the loop of the outer step, 2,048 values at a time, in 32 float lanes that are folded into
// double. Where such a run's Σ g² or Σ v² is not within 2^±80, floats could underflow or overflow; then it is summed in
// double, from the reconstructed v, and so is a shorter run. Every order is fixed: values in a run, runs in a tile,
// tiles in a work item, and work items. So the bits are the same with any number of threads. A lane's roundings are
// below 2^-18 of √(Σ g² Σ v²), and in the mean far below.
//
// Each site's d_m costs a separate decode. So only a sample of a fragment of 32 tiles or more is decoded: the first
// unit of one tile in up to 128, with different tiles from round to round. A smaller fragment is decoded whole.
// Rotations are orthonormal: nothing is rotated back. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/outer_step.h"
#include "server/merge/contribution.h"

namespace causeway::server {

struct StepProducts {
  double gg = 0;  // Σ g²
  double gv = 0;  // Σ g v
  double vv = 0;  // Σ v²

  void Add(const StepProducts& other);
  friend bool operator==(const StepProducts&, const StepProducts&) = default;
};

// Takes the same step as core::OuterStep, and returns the products.
StepProducts MeasuredOuterStep(const core::OuterParameters& outer, std::span<const float> gradient,
                               std::span<float> momentum, std::span<float> anchor);

// Sums for each contribution, over the sample.
struct Agreements {
  double xx = 0;               // Σ x²
  std::vector<double> dx, dd;  // Σ d_m x, Σ d_m²

  void Add(const Agreements& other);
  std::vector<double> Cosines() const;  // NaN for a zero contribution or mean
};

// The part of a fragment in the sample of the round from version `base`.
class TileSample {
 public:
  TileSample(const core::Fragment& fragment, core::Version base);
  std::optional<Tile> Of(const Tile& tile) const;  // the part of the tile in the sample

 private:
  int64_t stride_ = 1;
  int64_t offset_ = 0;
};

// Adds the tile's sums to `agreements`; `mean` begins with its x, in whole blocks. The readers do not move.
void AddAgreements(const Tile& tile, std::span<const ContributionReader> readers, std::span<const float> mean,
                   Agreements& agreements);

}  // namespace causeway::server
