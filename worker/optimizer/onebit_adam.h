// 1-bit Adam over the ranks of a site: data parallel AdamW until the variance freezes, then momenta at one bit a value.
//
//   warm-up   gradients, averaged ─► m, v ─► θ              v settled (VarianceFreeze)
//   frozen    own gradient ─► own m ─► 1 bit ─► averaged m ─► θ, by the v that stays  (momentum_exchange.h)
//
// The moments belong to the inner optimizer; this class decides their treatment. WAN traffic is unchanged. One owner
// thread, on every rank alike. Source: 1-bit Adam (arXiv 2102.02888).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "formats/safetensors.h"
#include "worker/optimizer/momentum_exchange.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

// Decides when 1-bit Adam freezes its variance v: at a given step, or once v has settled.
//
//   after each step of warm-up   ‖v_t‖₁ ─► r = ‖v̂_t‖₁ / ‖v̂_{t−Δ}‖₁, Δ = 1/(1−β2) ─► 0.96 ≤ r ≤ 1/0.96: frozen at t
//
// v̂ is v without the bias of its start at zero, which would look like growth; both have seen at least Δ steps, since
// an estimate from fewer says little. The published rule is r ≥ 0.96, for a v
// that falls; one that grows has not settled either. The rate's own warm-up must be over. Steps are those that the
// site's optimizer has taken, because a joiner's v is young at any step of the run. Sums have an order that is the same
// on every processor: ranks with equal v make the same decision. One owner thread. Source: 1-bit Adam (arXiv
// 2102.02888),
// section 5.2.

// Σ |v| in double, the same bits on all processors.
double SumInLanes(std::span<const float> second_moment);

class VarianceFreeze {
 public:
  static constexpr double kSettled = 0.96;

  explicit VarianceFreeze(const core::InnerConfig& config);

  // Whether Note wants ‖v‖₁; it takes a pass over v.
  bool needs_norm() const { return !frozen() && automatic_; }

  // Step `taken` of the optimizer, counted from 1, has been taken, with this resulting ‖v‖₁ (any value if it is not
  // needed). `rate_is_warm`: the learning rate's warm-up is over.
  void Note(int64_t taken, bool rate_is_warm, double norm);

  bool frozen() const { return frozen_at_ > 0; }
  int64_t frozen_at() const { return frozen_at_; }  // the last step that changed v; 0: none
  double ratio() const { return ratio_; }           // r of the last step that had one; 0: none
  int64_t delta() const { return delta_; }          // Δ

  // To and from a checkpoint: the norms of the last Δ steps, the newest last.
  std::vector<float> norms() const { return {norms_.begin(), norms_.end()}; }
  void Restore(int64_t frozen_at, double ratio, std::span<const float> norms);

 private:
  bool automatic_;
  int64_t given_;  // the step to freeze at, where it is not automatic
  double beta2_;
  int64_t delta_;
  std::deque<float> norms_;  // as float, so that a restored run makes the same decisions as an uninterrupted one
  int64_t frozen_at_ = 0;
  double ratio_ = 0;
};

class OnebitAdam {
 public:
  // `first_moment` and `second_moment` are those of all values, and outlive this object.
  OnebitAdam(const core::InnerConfig& config, const core::Manifest& manifest, const TrainerRanks& ranks,
             std::span<float> first_moment, std::span<const float> second_moment);

  bool frozen() const { return freeze_.frozen(); }
  int64_t frozen_at() const { return freeze_.frozen_at(); }

  // ---- Warm-up: AdamW has taken its step number `taken`, step t of the run ----
  void NoteWarmupStep(int64_t taken, core::Step t);

  // ---- Frozen ----
  void BeginStep();
  // This rank's gradients from `first` on are final, scaled as clipping requires: sends complete buckets.
  absl::Status TakeGradients(std::span<const float> gradients, int64_t first, float gradient_scale);
  // Takes the remaining gradients, too; returns when m is the average over the ranks.
  absl::Status FinishStep(std::span<const float> gradients, float gradient_scale);

  core::OnebitProgress progress() const;

  // A checkpoint: all ranks call Gather, then rank 0 takes the state, whose values stay until it drops them.
  absl::Status Gather();
  void AppendState(std::vector<formats::TensorData>& tensors, std::map<std::string, std::string>& metadata);
  void DropGathered();
  // Also works in a world of another size (MomentumExchange::Restore).
  absl::Status LoadState(const formats::SafetensorsFile& file);

 private:
  const core::InnerConfig config_;
  const TrainerRanks ranks_;
  std::span<float> first_moment_;
  std::span<const float> second_moment_;
  VarianceFreeze freeze_;
  MomentumExchange exchange_;
  int64_t taken_from_ = 0;  // gradients of this step from here on are in m
  // The values that a checkpoint's file is written from.
  std::vector<float> norms_;
  MomentumExchange::State gathered_;
};

}  // namespace causeway::worker
