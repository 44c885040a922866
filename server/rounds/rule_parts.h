// The rules of a run side by side, and the consequences of an event that touch several of them. One owner at a time.
#pragma once

#include <map>
#include <set>
#include <string>
#include <variant>

#include "server/rounds/heard.h"
#include "server/rounds/lead_rules.h"
#include "server/rounds/member_rules.h"
#include "server/rounds/round_rules.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"
#include "server/rounds/shard_rules.h"
#include "server/rounds/value_rules.h"

namespace causeway::server {

// The reasons of the rules, in the words of the log, the status page and the tests. Reasons are logged when they
// change, so none contains a running clock.
RunState StateOf(const RunFacts& facts);
// Why the run waits, is paused, stopped or done; empty while it trains. `held`: Holds::Reason; `waits`: why it has not
// started.
std::string RunReason(const RunFacts& facts, const std::string& held, const std::string& waits);

// Why the open round waits: "1 of 2 for a quorum; waiting for asia, us"; empty before any contribution.
std::string RoundReason(const RunFacts& facts, const RoundRules& rounds, core::FragmentId fragment,
                        const std::string& held);
std::string WhyItCloses(const RunFacts& facts, const RoundRules& rounds, core::FragmentId fragment);

// The reasons for which a run is held: no round closes, and sites hold before their next step. An operator's pause is
// part of the run's state; the others are this process's own, and end when an operator resumes the run.
class Holds {
 public:
  explicit Holds(RunFacts& facts) : facts_(facts) { Update(); }

  void Raise(Hold hold, const std::string& why);  // no effect once an operator has resumed the run despite such a hold
  bool raised() const { return !why_.empty(); }
  void Settle();  // an operator has resumed the run
  void Void();    // ends all holds of a stopped run: sites have to leave
  void Pause(bool paused);

  std::string Reason() const;  // empty: the run is not held

 private:
  void Update() { facts_.held = facts_.state.paused || raised(); }

  RunFacts& facts_;
  std::map<Hold, std::string> why_;
  std::set<Hold> settled_;
};

struct RuleParts {
  RuleParts(const RoundSettings& settings, core::RoundState state, int64_t now_ms, const core::SiteId& seeder);

  RunFacts facts;
  Pace pace;
  Heard heard;
  Holds holds;
  MemberRules members;
  std::variant<LeadRules, ShardRules> role;  // shard 0's rules, or those of another shard
  RoundRules rounds;
  ValueRules values;
};

// Closes the rounds that are due.
void CloseRounds(RuleParts& run, Actions& actions);
// Records that the site is gone, and decides nothing else yet.
void End(RuleParts& run, const Dropped& dropped, Actions& actions);
// Records that the site is gone, and decides all that follows: the initial parameters are requested from another,
// rounds close without it, and a site that is left with a round that it cannot fill joins anew.
void Drop(RuleParts& run, const Dropped& dropped, Actions& actions);
void DropStranded(RuleParts& run, Actions& actions);
core::SiteId Stranded(const RuleParts& run);  // the site that would be dropped; empty: none

}  // namespace causeway::server
