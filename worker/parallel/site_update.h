// From a step's gradients to θ: the ranks' sums and the inner optimizer, in the order that the optimizer requires.
//
//   backward ─► Final(tensor) ─┬─► gradients, summed over the ranks ─► AdamW or SGD ──────────────┬─► θ
//                              └─► own momentum ─► 1 bit, averaged ─► Adam with a frozen v ───────┘
//                                  (1-bit Adam, frozen)
//
// With the second, scale() is 1: each rank compresses the momentum of its own gradient. Clipping takes the root mean
// square of the ranks' norms for the norm that it bounds, because the mean gradient is never made; and as that is known
// only when backward is over, momenta cross beside backward only where inner.clip is 0. One owner thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/parallel/sharded_tensors.h"
#include "worker/parallel/work_trace.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class SiteUpdate {
 public:
  // `optimizer`: of the tensors' own values. Both outlive it.
  SiteUpdate(const core::RunConfig& config, ShardedTensors& tensors, InnerOptimizer& optimizer,
             const TrainerRanks& ranks);

  int rank() const { return steps_.rank(); }
  int world() const { return steps_.world(); }
  // The factor of each rank's gradient, which is the mean over its rows.
  float scale() const { return averages_momenta() ? 1.0f : steps_.ranks().data_scale(); }

  // Begins a step; its gradients were cleared, and are added to from here on.
  void Begin();
  // Gradients of this tensor and of all after it are final.
  void Final(int tensor);
  // All gradients are final: takes step t on all ranks. `mine`: this rank's part, without its sum of squares. Returns
  // all ranks' parts. DATA_LOSS: a gradient is not finite, on this rank or another.
  absl::StatusOr<std::vector<RankStep>> Finish(core::Step t, RankStep mine);

  // Notes the optimizer's step in `trace`, which outlives the object.
  void Trace(WorkTrace* trace) { trace_ = trace; }

  core::RankProgress rank_progress() const;
  bool stop_requested() const { return steps_.stop_requested(); }

 private:
  absl::StatusOr<std::vector<RankStep>> FinishGradients(core::Step t, RankStep mine);
  absl::StatusOr<std::vector<RankStep>> FinishMomenta(core::Step t, RankStep mine);
  // Whether the ranks average momenta: 1-bit Adam with a frozen variance does.
  bool averages_momenta() const { return onebit_ != nullptr && onebit_->frozen(); }
  // ‖g‖², from every rank's sums or from this rank's alone. DATA_LOSS: a gradient is not finite.
  absl::StatusOr<double> SumOfSquares(core::Step t, const std::vector<double>& sums) const;

  ShardedTensors& tensors_;
  RankSteps steps_;
  InnerOptimizer& optimizer_;
  OnebitAdam* const onebit_;  // null: it never averages momenta
  const bool clips_;
  const SquareGroups squares_;
  WorkTrace* trace_ = nullptr;
  absl::Status early_;             // the result for momenta that crossed during backward
  const double all_reduce_bytes_;  // bytes a rank would send for its gradients in float32
};

}  // namespace causeway::worker
