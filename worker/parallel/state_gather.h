// Gathers a trainer's state at rank 0, to write a checkpoint from, where its ranks hold pieces of tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/layout.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

// The pieces of the whole manifest that a rank holds as tensors of its own, in its order; `rank` is the first that has
// the piece, and sends it. The same on all ranks.
using StatePieces = std::function<std::vector<Piece>(int rank)>;

// θ and the optimizer's tensors of each piece go from the rank that sends it to rank 0, which returns them whole, in
// the order of `whole`; other ranks return none. Every rank calls it, with what it holds. INTERNAL: a rank has failed.
absl::StatusOr<std::vector<GatheredTensor>> GatherTensors(const TrainerRanks& ranks, const core::Manifest& whole,
                                                          const core::Manifest& held, const TensorValues& parameters,
                                                          OptimizerState& optimizer, const StatePieces& pieces_of);

}  // namespace causeway::worker
