// Figures of a fragment's outer gradients and outer optimizer: the similarity of successive gradients, and the effect
// of momentum on them.
//
//   g_t the mean outer gradient of a round, v the momentum, v_t = μ v_{t−1} + g_t, step η γ (g_t + μ v_t)
//
//   correlation    ρ = r / (1 + μ r), r = Σ ⟨g_t, v_{t−1}⟩ / Σ ‖g_t‖² over the last 16 rounds
//   amplification  A_t = ‖g_t + μ v_t‖ / ‖g_t‖
//   predicted      A² = (1+μ)² + 2(1+μ)μ²ρ/(1−μρ) + μ⁴(1+μρ)/((1−μ²)(1−μρ))
//   effective η    η γ (1 + μ / (1 − μρ))
//
// Where gradients follow a first-order process, E⟨g_t, g_{t−k}⟩ = ρ^k ‖g‖², r is ρ / (1 − μρ), which gives the formula
// for ρ. It is a ratio of sums, because a mean of ratios is biased toward rounds with small gradients. With μ = 0, v is
// the gradient before: ρ is r, A is 1 and the effective η is η. A ratio outside the range of a correlation, such as
// after a sudden change of the gradients' length, counts as −1 or 1. Rounds before which there was no momentum say
// nothing about the correlation. Pure; one owner at a time.
#pragma once

#include <deque>
#include <optional>

#include "core/ids.h"
#include "core/outer_step.h"

namespace causeway::server {

inline constexpr int kCorrelatedRounds = 16;

struct OuterGradientFigures {
  std::optional<double> norm;  // ‖g‖ of the last round; if it is 0, all others are absent
  std::optional<double> correlation;
  std::optional<double> amplification;  // of the last round
  std::optional<double> predicted_amplification;
  std::optional<double> effective_lr;
};

class OuterGradients {
 public:
  struct Products {
    double gg = 0;  // ‖g_t‖²
    double gv = 0;  // ⟨g_t, v_{t−1}⟩
    double vv = 0;  // ‖v_{t−1}‖²
  };

  // Adds the round that made `version`. A version not above the last one starts anew: the run was rolled back, or is a
  // different one.
  void Add(core::Version version, const core::OuterParameters& outer, const Products& products);

  OuterGradientFigures Figures() const;

 private:
  core::Version version_ = 0;
  core::OuterParameters outer_;
  std::deque<Products> rounds_;  // the last kCorrelatedRounds at most
};

}  // namespace causeway::server
