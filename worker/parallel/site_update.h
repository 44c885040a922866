// From a step's gradients to θ: the ranks' averaging and the inner optimizer, in the order that the optimizer requires.
//
//   backward ─► FinalFrom(tensor) ─┬─► gradients, all-reduced ─► AdamW or SGD ────────────────────┬─► θ
//                                  └─► own momentum ─► 1 bit, averaged ─► Adam with a frozen v ───┘
//                                      (1-bit Adam, frozen)
//
// With the second, scale() is 1: each rank compresses the momentum of its own gradient. Clipping takes the root mean
// square of the ranks' norms for the norm that it bounds, because the mean gradient is never made; and as that is known
// only when backward is over, momenta cross beside backward only where inner.clip is 0. One owner thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/ranks/data_parallel.h"

namespace causeway::worker {

class SiteUpdate {
 public:
  // As InnerOptimizer.
  SiteUpdate(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
             offload::BusSchedule& bus, const std::string& calibration_path, const TrainerRanks& ranks);

  int rank() const { return parallel_.rank(); }
  int world() const { return parallel_.world(); }
  // The factor of each rank's gradient, which is the mean over its rows.
  float scale() const { return optimizer_.averages_momenta() ? 1.0f : parallel_.scale(); }

  // A step's gradients, which stay until Finish.
  void Begin(TensorValues& gradients);
  // Tensors from this one on are final.
  void FinalFrom(int tensor);
  // All tensors are final: takes step t on all ranks. `mine`: this rank's part, without its sum of squares. Returns all
  // ranks' parts. DATA_LOSS: a gradient is not finite, on this rank or another.
  absl::StatusOr<std::vector<RankStep>> Finish(core::Step t, RankStep mine);

  InnerOptimizer& optimizer() { return optimizer_; }
  std::optional<core::OffloadProgress> offload_progress() const { return optimizer_.progress(); }
  core::RankProgress rank_progress() const;
  bool stop_requested() const { return parallel_.stop_requested(); }

 private:
  absl::StatusOr<std::vector<RankStep>> FinishGradients(core::Step t, RankStep mine);
  absl::StatusOr<std::vector<RankStep>> FinishMomenta(core::Step t, RankStep mine);

  DataParallel parallel_;
  InnerOptimizer optimizer_;
  TensorValues* gradients_ = nullptr;
  absl::Status early_;       // of momenta that crossed during backward
  double all_reduce_bytes_;  // that a rank sends for its gradients in float32
};

}  // namespace causeway::worker
