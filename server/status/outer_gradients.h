// A fragment's outer gradients, and the outer optimizer: how alike successive ones are, and what momentum makes of
// them.
//
//   g_t the mean outer gradient of a round, v the momentum, v_t = μ v_{t−1} + g_t, step η (g_t + μ v_t)
//
//   correlation    ρ = r / (1 + μ r), r = Σ ⟨g_t, v_{t−1}⟩ / Σ ‖g_t‖² over the last 16 rounds
//   amplification  A_t = ‖g_t + μ v_t‖ / ‖g_t‖
//   predicted      A² = (1+μ)² + 2(1+μ)μ²ρ/(1−μρ) + μ⁴(1+μρ)/((1−μ²)(1−μρ))
//   effective η    η (1 + μ / (1 − μρ))
//
// Where gradients are like those of a first-order process, E⟨g_t, g_{t−k}⟩ = ρ^k ‖g‖², r is ρ / (1 − μρ), and so ρ is
// what the formula says. A ratio of sums, because a mean of ratios leans to rounds with small gradients. With μ = 0, v
// is the gradient before: ρ is r, A is 1 and the effective η is η. A ratio beyond what a correlation can be, as after a
// sudden change of the gradients' length, counts as −1 or 1. Rounds before which there was no momentum say nothing of
// the correlation. Pure; one owner at a time.
#pragma once

#include <deque>
#include <optional>

#include "core/ids.h"
#include "core/outer_step.h"

namespace causeway::server {

inline constexpr int kCorrelatedRounds = 16;

struct OuterGradientFigures {
  std::optional<double> norm;  // ‖g‖ of the last round; all others are absent where it is 0
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

  // The round that made `version`. One that is not above the last begins anew: the run went back, or is another one.
  void Add(core::Version version, const core::OuterParameters& outer, const Products& products);

  OuterGradientFigures Figures() const;

 private:
  core::Version version_ = 0;
  core::OuterParameters outer_;
  std::deque<Products> rounds_;  // the last ones
};

}  // namespace causeway::server
