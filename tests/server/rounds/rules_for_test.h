// Words for the tests of the rules that are no scripts (rules_script.h): a method for each event, and the actions of one
// kind.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/rounds/run_facts.h"
#include "server/rounds/run_rules.h"

namespace causeway::server {

struct Joined : JoinDecision {
  Actions actions;
};

class RulesForTest : public RunRules {
 public:
  explicit RulesForTest(const RoundSettings& settings) : RunRules(settings, {}, /*now_ms=*/0) {}

  Joined Join(const JoinRequest& request, int64_t now_ms) {
    const Outcome outcome = Handle(request, now_ms);
    return {outcome.join, outcome.actions};
  }
  Actions Leave(const core::SiteId& site, const core::SessionId& session, bool finished, const std::string& reason,
                int64_t now_ms) {
    return Handle(SiteLeaves{site, session, finished, reason}, now_ms).actions;
  }
  Actions Admit(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                int64_t transfer_ms, int64_t now_ms, int64_t parameters = 0) {
    return Handle(ContributionAdmitted{site, fragment, contribution, transfer_ms, parameters}, now_ms).actions;
  }
};

inline RoundSettings Rules(int64_t sync_every = 8, int num_fragments = 1, int64_t delay = 0, int min_sites = 1) {
  RoundSettings rules;
  rules.sync.sync_every = sync_every;
  rules.sync.num_fragments = num_fragments;
  rules.sync.fragment_sync_delay = delay;
  rules.membership.min_sites = min_sites;
  rules.membership.lease_ms = 1000;
  return rules;
}

template <typename T>
std::vector<T> ActionsOf(const Actions& actions) {
  std::vector<T> chosen;
  for (const Action& action : actions) {
    if (const T* one = std::get_if<T>(&action)) chosen.push_back(*one);
  }
  return chosen;
}

inline core::SessionId SessionOf(const core::SiteId& site) { return site + "-1"; }

// Joins, seeds if no site has, and is ready. Returns the actions of the last step.
inline Actions Arrive(RulesForTest& table, const core::SiteId& site, int64_t now_ms = 0) {
  table.Join({.site = site, .session = SessionOf(site), .held = {}}, now_ms);
  table.Handle(SeedComplete{}, now_ms);
  return table.Handle(SiteReady{site, SessionOf(site)}, now_ms).actions;
}

// Checked and admitted, as the coordinator does it; a refusal ends the test.
inline Actions Contribute(RulesForTest& table, const core::SiteId& site, core::FragmentId fragment,
                          core::Version base) {
  const core::Admitted sent{.base = base, .tokens = 100, .steps = 10};
  if (!table.CheckContribution(site, SessionOf(site), fragment, sent).ok()) std::abort();
  return table.Admit(site, fragment, sent, /*transfer_ms=*/0, /*now_ms=*/0);
}

}  // namespace causeway::server
