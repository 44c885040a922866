#include "worker/optimizer/variance_freeze.h"

#include <algorithm>
#include <cmath>

#include "core/multiversion.h"

namespace causeway::worker {

CAUSEWAY_MULTIVERSION
double SumInLanes(std::span<const float> second_moment) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  const float* const v = second_moment.data();
  size_t i = 0;
  for (; i + kLanes <= second_moment.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += std::fabs(v[i + lane]);
  }
  for (; i < second_moment.size(); ++i) lanes[i % kLanes] += std::fabs(v[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

VarianceFreeze::VarianceFreeze(const core::InnerConfig& config)
    : automatic_(config.freeze_at == core::kAutoFreeze),
      given_(config.freeze_at),
      beta2_(config.beta2),
      delta_(std::max<int64_t>(1, std::llround(1 / (1 - config.beta2)))) {}

void VarianceFreeze::Note(int64_t taken, bool rate_is_warm, double norm) {
  if (frozen()) return;
  if (!automatic_) {
    if (taken >= given_) frozen_at_ = taken;
    return;
  }
  if (taken < delta_) return;
  norms_.push_back(static_cast<float>(norm / (1 - std::pow(beta2_, static_cast<double>(taken)))));
  if (std::ssize(norms_) <= delta_) return;
  ratio_ = static_cast<double>(norms_.back()) / static_cast<double>(norms_.front());
  norms_.pop_front();
  if (!rate_is_warm || !(ratio_ >= kSettled && ratio_ <= 1 / kSettled)) return;
  frozen_at_ = taken;
  norms_.clear();
}

void VarianceFreeze::Restore(int64_t frozen_at, double ratio, std::span<const float> norms) {
  frozen_at_ = frozen_at;
  ratio_ = ratio;
  norms_.assign(norms.begin(), norms.end());
}

}  // namespace causeway::worker
