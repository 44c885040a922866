#include "worker/parallel/sharded_tensors.h"

#include <algorithm>

#include "core/check.h"
#include "worker/optimizer/inner_optimizer.h"

namespace causeway::worker {

bool ShardedTensors::HoldsWholeTensors(int rank) const {
  return std::ranges::all_of(own_pieces(rank), [&](const Piece& piece) {
    return piece.tensor >= 0 && piece.count == manifest_[static_cast<size_t>(piece.tensor)].NumValues();
  });
}

absl::StatusOr<std::vector<double>> ShardedTensors::SumsOfSquares(const SquareGroups& groups) {
  const std::vector<double> squares = SquaresOf(own().gradients);
  std::vector<double> sums(groups.groups.size());
  for (size_t i = 0; i < squares.size(); ++i) sums[static_cast<size_t>(groups.group_of[i])] += squares[i];
  return sums;
}

absl::Status ShardedTensors::CheckGradients(const SquareGroups& groups, size_t group, core::Step t) {
  for (size_t i = 0; i < groups.group_of.size(); ++i) {
    if (static_cast<size_t>(groups.group_of[i]) != group) continue;
    RETURN_IF_ERROR(CheckFinite(own().manifest[i], own().gradients[static_cast<int>(i)], t));
  }
  return absl::OkStatus();
}

std::span<float> ShardedTensors::tensor(int i) {
  const int64_t size = manifest_[static_cast<size_t>(i)].NumValues();
  std::span<float> whole;
  copied_.clear();
  ForEachRun(i, 0, size, [&](int64_t first, std::span<float> run) {
    if (std::ssize(run) == size) {
      whole = run;
      return;
    }
    copied_.resize(static_cast<size_t>(size));
    std::ranges::copy(run, copied_.begin() + first);
  });
  if (!whole.empty()) return whole;
  copied_.resize(static_cast<size_t>(size));
  return copied_;
}

}  // namespace causeway::worker
