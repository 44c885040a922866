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
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/run_config.h"

namespace causeway::worker {

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
  int64_t given_;  // the step, where it is not automatic
  double beta2_;
  int64_t delta_;
  std::deque<float> norms_;  // as float, so that a restored run makes the same decisions as an uninterrupted one
  int64_t frozen_at_ = 0;
  double ratio_ = 0;
};

}  // namespace causeway::worker
