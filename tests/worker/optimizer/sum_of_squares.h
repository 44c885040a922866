// ‖g‖² of all gradients, for an optimizer that no trainer calls.
#pragma once

#include <cmath>

#include "absl/status/statusor.h"
#include "core/check.h"
#include "worker/optimizer/inner_optimizer.h"

namespace causeway::worker {

// In the manifest's order. DATA_LOSS names the first that is not finite.
inline absl::StatusOr<double> SumOfSquares(core::Step t, const core::Manifest& manifest,
                                           const TensorValues& gradients) {
  double sum = 0;
  const std::vector<double> squares = SquaresOf(gradients);
  for (int i = 0; i < gradients.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (!std::isfinite(squares[at])) RETURN_IF_ERROR(CheckFinite(manifest[at], gradients[i], t));
    sum += squares[at];
  }
  return sum;
}

}  // namespace causeway::worker
