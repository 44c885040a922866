// Chooses how many ranks of a site to give to tensor, pipeline and data parallelism, by Megatron-LM's terms (arXiv
// 2104.04473, sections 2.2, 3 and 4.1).
//
//   R = t·p·d ranks, tensor groups innermost, pipelines outermost; each of p devices of a pipeline has v stages
//   B sequences a step, b of a micro-batch: m = B ÷ (d·b) micro-batches of each pipeline
//
//   a micro-batch on the slowest device   layers ÷ t + its tensor-parallel all-reduces, or its messages if longer
//   tensor-parallel all-reduces           8·b·s·h·(t−1)/t values a layer, on the level that a group spans
//   messages                              2·v of b·s·h ÷ t values (scatter/gather), on the level between stages
//   bubble                                (p−1)/v micro-batches; (p−1)/(v·m+p−1) of a step without messages
//   gradients                             2·(d−1)/d of a rank's parameters, after the step
//   a rank's memory                       parameters ÷ t; layer_bytes ÷ t of interleaved 1F1B's peak
//
// A group's bytes are counted to the slowest level that it spans; layers scale with b as they were measured, one costs
// file for each b. v = 1 is 1F1B; v > 1 needs m to be a multiple of p. Closed terms, not the simulator: for the
// schedule itself use plan/pipeline_planner.h. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/link_levels.h"
#include "plan/pipeline_costs.h"

namespace causeway::plan {

struct GridInput {
  int ranks = 0;
  int batch = 0;                     // sequences of a step, over all ranks
  std::vector<PipelineCosts> costs;  // one for each size of a micro-batch
  core::LinkLevels levels;
  double memory_bytes = 0;  // limit for a rank; 0: none
};

struct GridRow {
  int tensor = 1, pipeline = 1, data = 1;
  int chunks = 1;
  int sequences = 0;      // sequences of a micro-batch
  int micro_batches = 0;  // micro-batches of a pipeline
  // Parts of a step in seconds, which add up to it.
  double compute_s = 0, tensor_s = 0, message_s = 0, bubble_s = 0, gradient_s = 0;
  // Bytes that a rank sends in a step.
  double tensor_bytes = 0, message_bytes = 0, gradient_bytes = 0;
  double memory_bytes = 0;  // memory of the rank that needs most

  double step_s() const { return compute_s + tensor_s + message_s + bubble_s + gradient_s; }
  double bubble_share() const {
    const double waits = pipeline - 1;
    return waits / (static_cast<double>(chunks) * micro_batches + waits);
  }
};

// All rows that fit, the shortest step first. INVALID_ARGUMENT: the levels have fewer ranks, the costs lack what the
// terms need, the model, the batch or the heads cannot be cut, or no row fits the memory.
absl::StatusOr<std::vector<GridRow>> PlanGrid(const GridInput& input);

// The innermost level whose groups hold every group of `size` ranks that are `stride` apart; −1: size is 1.
int SpannedLevel(const core::LinkLevels& levels, int ranks, int stride, int size);

inline constexpr int kMostGridChunks = 4;

}  // namespace causeway::plan
