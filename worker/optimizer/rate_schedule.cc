#include "worker/optimizer/rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace causeway::worker {

double LearningRate(const core::InnerConfig& config, double end, double place) {
  const auto warmup = static_cast<double>(config.warmup_steps);
  if (warmup > 0 && place <= warmup) return config.lr * place / warmup;
  if (config.schedule == core::InnerSchedule::kConstant || end <= warmup) return config.lr;
  const double progress = (place - warmup) / (end - warmup);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return config.lr * (0.1 + 0.9 * cosine);
}

void RateSchedule::Change(const core::RunConfig& config) {
  inner_ = config.inner;
  steps_ = config.steps;
  tokens_ = static_cast<double>(config.tokens);
  tokens_of_step_ = static_cast<double>(config.TokensOfAStep());
}

double RateSchedule::At(core::Step t) const {
  if (tokens_ == 0) return LearningRate(inner_, static_cast<double>(steps_), static_cast<double>(t));
  return LearningRate(inner_, tokens_ / tokens_of_step_, static_cast<double>(run_tokens_) / tokens_of_step_);
}

}  // namespace causeway::worker
