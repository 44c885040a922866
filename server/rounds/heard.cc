#include "server/rounds/heard.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace causeway::server {

using core::FragmentId;
using core::SiteId;

void Heard::Trained::Report(int64_t says, const std::optional<Bound>& bound, int64_t heard_ms, int64_t now_ms) {
  const auto now_reported = static_cast<double>(says);
  const double gained = reported ? std::max(0.0, now_reported - *reported) : 0;  // less: back to a checkpoint
  reported = now_reported;
  const double earned = bound ? bound->of_a_ms * static_cast<double>(now_ms - heard_ms) : gained;
  credit = std::min(credit, bound ? bound->of_a_round : 0) + earned;
  const bool fast = gained > credit;
  if (!fast) fast_since_ms.reset();
  if (fast && !fast_since_ms) fast_since_ms = heard_ms;
  const double taken = !fast || Trusted(now_ms) ? gained : credit;
  believed += taken;
  credit -= std::min(credit, taken);
  // Contributions that were believed beyond the reports are owed until the next, and no longer.
  for (std::optional<double>& all : counted) {
    if (all) all = std::min(*all, believed);
  }
}

int64_t Heard::Trained::Believed(int64_t says, FragmentId fragment, const std::optional<Bound>& bound, int64_t heard_ms,
                                 int64_t now_ms) const {
  if (!counted[fragment] || !bound || Trusted(now_ms)) return says;
  const double unheard = bound->of_a_round + bound->of_a_ms * static_cast<double>(now_ms - heard_ms);
  const double most = std::max(bound->of_a_round, believed - *counted[fragment] + unheard);
  return static_cast<double>(says) <= most ? says : std::max<int64_t>(1, static_cast<int64_t>(most));  // a weight
}

void Heard::Trained::Count(int64_t amount, FragmentId fragment) {
  std::optional<double>& all = counted[fragment];
  all = all ? *all + static_cast<double>(amount) : believed;
}

Heard::Bounds Heard::BoundsFor(const SiteId& site) const {
  Bounds bounds;
  const Pace::Rates others = pace_.FastestBut(site);
  if (others.steps > 0) bounds.steps = Bound{sync_every_, kFasterThanOthers * others.steps};
  if (others.tokens > 0) {
    bounds.tokens = Bound{sync_every_ * others.tokens_of_a_step, kFasterThanOthers * others.tokens};
  }
  return bounds;
}

void Heard::Enter(const SiteId& site, core::Step step, int64_t now_ms) {
  Site& one = sites_[site] = {.entered = step, .heard_ms = now_ms, .steps = {}, .tokens = {}};
  one.steps.reported = static_cast<double>(step);
  one.steps.counted.assign(num_fragments_, 0);
  one.tokens.counted.assign(num_fragments_, 0);
  one.steps.credit = sync_every_;
}

void Heard::Report(const SiteId& site, core::Step step, int64_t tokens, int64_t now_ms) {
  const auto [found, is_new] = sites_.try_emplace(site);
  Site& one = found->second;
  if (is_new) {
    one.entered = step;
    one.heard_ms = now_ms;
    one.steps.counted.resize(num_fragments_);
    one.tokens.counted.resize(num_fragments_);
  }
  const Bounds bounds = BoundsFor(site);
  one.steps.Report(step, bounds.steps, one.heard_ms, now_ms);
  one.tokens.Report(tokens, bounds.tokens, one.heard_ms, now_ms);
  one.heard_ms = now_ms;
}

core::Admitted Heard::Believed(const SiteId& site, FragmentId fragment, core::Admitted contribution,
                               int64_t now_ms) const {
  const auto found = sites_.find(site);
  if (found == sites_.end()) return contribution;
  const Site& one = found->second;
  const Bounds bounds = BoundsFor(site);
  contribution.steps = one.steps.Believed(contribution.steps, fragment, bounds.steps, one.heard_ms, now_ms);
  contribution.tokens = one.tokens.Believed(contribution.tokens, fragment, bounds.tokens, one.heard_ms, now_ms);
  return contribution;
}

void Heard::Count(const SiteId& site, FragmentId fragment, const core::Admitted& contribution) {
  const auto found = sites_.find(site);
  if (found == sites_.end()) return;
  found->second.steps.Count(contribution.steps, fragment);
  found->second.tokens.Count(contribution.tokens, fragment);
}

bool Heard::MayHaveDone(const SiteId& site, core::Step steps) const {
  const auto found = sites_.find(site);
  if (found == sites_.end()) return true;
  const Site& one = found->second;
  return *one.steps.reported >= static_cast<double>(steps) &&
         static_cast<double>(one.entered) + kFasterThanOthers * one.steps.believed >= static_cast<double>(steps);
}

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
