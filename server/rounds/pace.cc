#include "server/rounds/pace.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace causeway::server {

void Pace::Heard(const core::SiteId& site, core::Step step, int64_t now_ms, int64_t longest_gap_ms, int64_t tokens) {
  Site& pace = sites_[site];
  const bool follows = pace.last && step >= pace.last->step && now_ms - pace.last->heard_ms <= longest_gap_ms;
  if (!follows) {
    pace.last = {.step = step, .tokens = tokens, .stepped_ms = now_ms, .heard_ms = now_ms};
    return;
  }
  pace.last->heard_ms = now_ms;
  if (step == pace.last->step) return;
  pace.ms.Add(static_cast<double>(now_ms - pace.last->stepped_ms));
  pace.steps.Add(static_cast<double>(step - pace.last->step));
  pace.tokens.Add(static_cast<double>(std::max<int64_t>(0, tokens - pace.last->tokens)));
  pace.last->step = step;
  pace.last->tokens = tokens;
  pace.last->stepped_ms = now_ms;
}

void Pace::InterruptedAll() {
  for (auto& [site, pace] : sites_) pace.last.reset();
}

Pace::Rates Pace::FastestBut(const core::SiteId& site) const {
  Rates fastest;
  for (const auto& [name, pace] : sites_) {
    if (name == site || pace.ms.value_or(0) == 0) continue;
    fastest.steps = std::max(fastest.steps, *pace.steps.value() / *pace.ms.value());
    fastest.tokens = std::max(fastest.tokens, *pace.tokens.value() / *pace.ms.value());
    fastest.tokens_of_a_step = std::max(fastest.tokens_of_a_step, *pace.tokens.value() / *pace.steps.value());
  }
  return fastest;
}

std::optional<double> Pace::StepMs() const {
  std::vector<double> known;
  for (const auto& [site, pace] : sites_) {
    if (pace.ms.value()) known.push_back(*pace.ms.value() / *pace.steps.value());
  }
  if (known.empty()) return std::nullopt;
  const auto middle = known.begin() + static_cast<int64_t>(known.size() - 1) / 2;
  std::nth_element(known.begin(), middle, known.end());
  return *middle;
}

int64_t Pace::GraceMs(int64_t cap_ms, int64_t delay) const {
  const std::optional<double> step_ms = StepMs();
  if (!step_ms) return cap_ms;
  const double slack_ms = delay * *step_ms - to_quorum_.value_or(0) - transfer_.value_or(0);
  return std::min(cap_ms, static_cast<int64_t>(std::llround(kGraceShare * std::max(0.0, slack_ms))));
}

double ContributionWeight(core::WeightRule rule, int64_t tokens, int64_t steps) {
  const double count = static_cast<double>(tokens);
  switch (rule) {
    case core::WeightRule::kUniform: return 1;
    case core::WeightRule::kTokens: return count;
    case core::WeightRule::kTokensSquaredPerStep: return count * (count / static_cast<double>(steps));
  }
  return 1;
}

}  // namespace causeway::server
