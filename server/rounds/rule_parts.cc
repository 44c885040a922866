#include "server/rounds/rule_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rounds/reasons.h"

namespace causeway::server {

void Holds::Raise(Hold hold, const std::string& why) {
  if (!settled_.contains(hold)) why_[hold] = why;
  Update();
}

void Holds::Settle() {
  for (const auto& [hold, why] : why_) settled_.insert(hold);
  Void();
}

void Holds::Void() {
  why_.clear();
  Update();
}

void Holds::Pause(bool paused) {
  facts_.state.paused = paused;
  Update();
}

std::string Holds::Reason() const {
  if (raised()) return why_.begin()->second;
  return facts_.state.paused ? "paused by an operator" : "";
}

using core::SiteId;

namespace {

std::variant<LeadRules, ShardRules> RoleOf(RunFacts& facts, const SiteId& seeder) {
  if (facts.settings.shard.leads()) return LeadRules(facts, seeder);
  return ShardRules(facts, seeder);
}

}  // namespace

RuleParts::RuleParts(const RoundSettings& settings, core::RoundState state, int64_t now_ms, const SiteId& seeder)
    : facts(settings, std::move(state), now_ms),
      heard(pace, facts.num_fragments(), facts.settings.sync.sync_every),
      holds(facts),
      members(facts),
      role(RoleOf(facts, seeder)),
      rounds(facts, pace),
      values(facts) {}

void CloseRounds(RuleParts& run, Actions& actions) {
  while (const auto fragment = run.rounds.Due()) {
    CloseRound close = run.rounds.Contributors(*fragment);
    close.reason = WhyItCloses(run.facts, run.rounds, *fragment);
    run.values.Close(close);
    run.rounds.Close(close);
    for (const CloseRound::Contributor& contributor : close.contributors) run.members.Merged(contributor.site);
    actions.push_back(std::move(close));
  }
}

void End(RuleParts& run, const Dropped& dropped, Actions& actions) {
  run.members.End(dropped);
  run.pace.Forget(dropped.site);
  run.heard.Forget(dropped.site);
  run.values.Forget(dropped.site);
  if (auto* lead = std::get_if<LeadRules>(&run.role)) lead->Left(dropped.site);
  actions.push_back(dropped);
}

void Drop(RuleParts& run, const Dropped& dropped, Actions& actions) {
  End(run, dropped, actions);
  if (auto* lead = std::get_if<LeadRules>(&run.role)) lead->AskForSeed(/*joined=*/"", actions);
  CloseRounds(run, actions);
  DropStranded(run, actions);
}

void DropStranded(RuleParts& run, Actions& actions) {
  const std::optional<core::FragmentId> fragment = run.rounds.Stranded();
  if (!fragment) return;
  // That drop takes care of the others.
  const std::string reason =
      absl::StrCat("no site is left to fill the open round of fragment ", *fragment, "; joins anew");
  Drop(run, {.site = Stranded(run), .reason = reason}, actions);
}

SiteId Stranded(const RuleParts& run) {
  if (!run.rounds.Stranded()) return "";
  return std::ranges::find_if(run.facts.state.sites, [](const auto& site) { return Counts(site.second); })->first;
}

}  // namespace causeway::server
