#include "server/status/outer_gradients.h"

#include <algorithm>
#include <cmath>

namespace causeway::server {

void OuterGradients::Add(core::Version version, const core::OuterParameters& outer, const Products& products) {
  if (version <= version_) rounds_.clear();
  version_ = version;
  outer_ = outer;
  rounds_.push_back(products);
  if (rounds_.size() > kCorrelatedRounds) rounds_.pop_front();
}

OuterGradientFigures OuterGradients::Figures() const {
  OuterGradientFigures figures;
  if (rounds_.empty()) return figures;
  const double mu = outer_.momentum;
  const Products& last = rounds_.back();
  figures.norm = std::sqrt(last.gg);
  if (last.gg > 0) {
    const double ahead = 1 + mu, behind = mu * mu;  // g + μ v_t = (1 + μ) g + μ² v_{t−1}
    const double squares = ahead * ahead * last.gg + 2 * ahead * behind * last.gv + behind * behind * last.vv;
    figures.amplification = std::sqrt(std::max(0.0, squares) / last.gg);
  }
  double gg = 0, gv = 0;
  for (const Products& round : rounds_) {
    if (round.vv == 0) continue;
    gg += round.gg;
    gv += round.gv;
  }
  if (gg <= 0) return figures;
  const double r = gv / gg;
  const double rho = 1 + mu * r > 0 ? std::clamp(r / (1 + mu * r), -1.0, 1.0) : -1.0;
  const double echo = 1 / (1 - mu * rho);
  figures.correlation = rho;
  figures.predicted_amplification = std::sqrt((1 + mu) * (1 + mu) + 2 * (1 + mu) * mu * mu * rho * echo +
                                              mu * mu * mu * mu * (1 + mu * rho) * echo / (1 - mu * mu));
  figures.effective_lr = double{outer_.lr} * double{outer_.gain} * (1 + mu * echo);
  return figures;
}

}  // namespace causeway::server
