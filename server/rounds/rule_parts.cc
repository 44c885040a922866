#include "server/rounds/rule_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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
  run.facts.unseen.erase(dropped.site);
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

using core::FragmentId;

namespace {

bool BelowQuorum(const RunFacts& facts) {
  if (facts.NumActive() >= facts.settings.membership.min_quorum || facts.state.finished) return false;
  for (FragmentId p = 0; p < facts.num_fragments(); ++p) {
    if (facts.Ending(p)) return false;
  }
  return true;
}

std::string QuorumReason(const RunFacts& facts) {
  const int active = facts.NumActive();
  const auto apart = static_cast<int>(facts.ActiveSites().size()) - active;
  if (active == 0 && apart > 0) return "all active sites are in quarantine (causewayctl release --all)";
  if (active == 0) return "no site is in the run; it goes on when one joins";
  return absl::StrCat(active, active == 1 ? " site is active, " : " sites are active, ",
                      apart > 0 ? absl::StrCat(apart, " in quarantine, ") : "", facts.settings.membership.min_quorum,
                      " are needed (min_quorum)");
}

}  // namespace

const char* RunStateName(RunState state) {
  switch (state) {
    case RunState::kWaiting: return "waiting";
    case RunState::kTraining: return "training";
    case RunState::kPaused: return "paused";
    case RunState::kDone: return "done";
  }
  return "unknown";
}

const char* RoundPhaseName(RoundPhase phase) {
  switch (phase) {
    case RoundPhase::kIdle: return "idle";
    case RoundPhase::kOpen: return "open";
    case RoundPhase::kGrace: return "grace";
  }
  return "unknown";
}

RunState StateOf(const RunFacts& facts) {
  if (facts.held) return RunState::kPaused;
  const bool no_site = facts.NumActive() == 0;
  const core::RoundState& state = facts.state;
  if ((state.finished || state.stopped) && no_site && !facts.AnyJoining()) return RunState::kDone;
  if (state.stopped) return RunState::kPaused;
  if (!state.started) return RunState::kWaiting;
  return no_site || BelowQuorum(facts) ? RunState::kPaused : RunState::kTraining;
}

std::string RunReason(const RunFacts& facts, const std::string& held, const std::string& waits) {
  if (!held.empty()) return held;
  if (facts.state.stopped) return "stopped by an operator";
  switch (StateOf(facts)) {
    case RunState::kWaiting: return waits;
    case RunState::kTraining: return "";
    case RunState::kPaused: return QuorumReason(facts);
    case RunState::kDone: return "all steps are done";
  }
  return "";
}

std::string RoundReason(const RunFacts& facts, const RoundRules& rounds, FragmentId fragment, const std::string& held) {
  const auto& contributors = facts.state.contributions[fragment];
  if (contributors.empty()) return "";
  if (!held.empty()) return held;
  if (facts.AwaitsUnseen()) return absl::StrCat(absl::StrJoin(facts.unseen, ", "), " may hold more than this state");
  if (!rounds.EnoughActive(fragment)) return QuorumReason(facts);
  const std::string missing = absl::StrJoin(rounds.MissingFrom(fragment), ", ");
  const std::string waiting = missing.empty() ? "" : absl::StrCat("waiting for ", missing);
  if (facts.synchronous()) return missing.empty() ? "complete" : waiting;
  if (!rounds.HasQuorum(fragment)) {
    return absl::StrCat(contributors.size(), " of ", rounds.Quorum(fragment), " for a quorum",
                        missing.empty() ? "" : "; ", waiting);
  }
  if (rounds.InGrace(fragment)) return absl::StrCat("grace of ", rounds.grace_ms(fragment), " ms for ", missing);
  return rounds.FarEnough(fragment) ? "complete" : "keeps its distance to the rounds before";
}

std::string WhyItCloses(const RunFacts& facts, const RoundRules& rounds, FragmentId fragment) {
  if (rounds.AnyMissingFrom(fragment)) {
    const int64_t grace_ms = rounds.grace_ms(fragment);
    const std::string grace = grace_ms > 0 ? absl::StrCat(", and the grace of ", grace_ms, " ms is over") : "";
    return absl::StrCat("quorum of ", rounds.Quorum(fragment), grace);
  }
  int contributed = 0;  // of those that are still in the run
  for (const auto& [site, record] : facts.state.sites) {
    contributed += Counts(record) && facts.state.contributions[fragment].contains(site);
  }
  if (contributed == 0) return "no site is left that could contribute";
  if (contributed < facts.NumActive()) return "no other site is left that could contribute";
  return contributed == 1 ? "the only active site has contributed"
                          : absl::StrCat("all ", contributed, " active sites have contributed");
}

}  // namespace causeway::server
