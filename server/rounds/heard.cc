#include "server/rounds/heard.h"

#include <algorithm>

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

}  // namespace causeway::server
