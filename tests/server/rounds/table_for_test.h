// Words for the tests of the rules: a table with a clock that stands still, and the actions of one kind.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/rounds/round_table.h"

namespace causeway::server {

inline constexpr int64_t kLeaseMs = 1000;

inline RoundRules Rules(int64_t sync_every = 8, int num_fragments = 1, int64_t delay = 0, int min_sites = 1) {
  RoundRules rules;
  rules.sync.sync_every = sync_every;
  rules.sync.num_fragments = num_fragments;
  rules.sync.fragment_sync_delay = delay;
  rules.membership.min_sites = min_sites;
  rules.membership.lease_ms = kLeaseMs;
  return rules;
}

// Quorum mode, starting with `min_quorum` sites; no grace. Leases are long, since nothing here ends by one.
inline RoundRules QuorumRules(int min_quorum, int num_fragments = 1) {
  RoundRules rules = Rules(/*sync_every=*/10, num_fragments, /*delay=*/5, /*min_sites=*/min_quorum);
  rules.sync.mode = core::SyncMode::kQuorum;
  rules.membership.min_quorum = min_quorum;
  rules.membership.lease_ms = 1'000'000;
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

// The only action of that kind; the test fails if there is none or another.
template <typename T>
T Only(const Actions& actions) {
  const std::vector<T> chosen = ActionsOf<T>(actions);
  EXPECT_EQ(chosen.size(), 1);
  return chosen.empty() ? T{} : chosen[0];
}

inline core::SessionId SessionOf(const core::SiteId& site) { return site + "-1"; }

// Joins, seeds if no site has, and is ready. Returns the actions of the last step.
inline Actions Arrive(RoundTable& table, const core::SiteId& site, int64_t now_ms = 0) {
  table.Join({.site = site, .session = SessionOf(site), .held = {}}, now_ms);
  table.Seeded();
  return table.Ready(site, SessionOf(site));
}

// A run in which these sites are; it has begun with the last of them.
inline RoundTable TableOf(const std::vector<core::SiteId>& sites, const RoundRules& rules) {
  RoundTable table(rules, {}, 0);
  for (const core::SiteId& site : sites) Arrive(table, site);
  return table;
}
inline RoundTable TableOf(const std::vector<core::SiteId>& sites) {
  return TableOf(sites, Rules(8, 1, 0, static_cast<int>(sites.size())));
}

inline absl::Status Check(const RoundTable& table, const core::SiteId& site, core::FragmentId fragment,
                          core::Version base, int64_t tokens = 100, int64_t steps = 10) {
  return table.CheckContribution(site, SessionOf(site), fragment, {.base = base, .tokens = tokens, .steps = steps});
}

// Checked and admitted, as the coordinator does it; a refusal ends the test.
inline Actions Contribute(RoundTable& table, const core::SiteId& site, core::FragmentId fragment, core::Version base,
                          int64_t now_ms = 0, int64_t tokens = 100, int64_t steps = 10) {
  const absl::Status status = Check(table, site, fragment, base, tokens, steps);
  if (!status.ok()) std::abort();
  return table.Admit(site, fragment, {.base = base, .tokens = tokens, .steps = steps}, /*transfer_ms=*/0, now_ms);
}

// One after the other; what the last one asked for.
inline Actions ContributeEach(RoundTable& table, const std::vector<core::SiteId>& sites, core::FragmentId fragment,
                              core::Version base, int64_t now_ms = 0) {
  Actions last;
  for (const core::SiteId& site : sites) last = Contribute(table, site, fragment, base, now_ms);
  return last;
}

inline Actions LeaveRun(RoundTable& table, const core::SiteId& site, bool finished = false, int64_t now_ms = 0) {
  return table.Leave(site, SessionOf(site), finished, "said so", now_ms);
}

// It has done all its steps, and waits for its open rounds.
inline Actions Complete(RoundTable& table, const core::SiteId& site, int64_t now_ms = 0) {
  return table.Heard(site, SessionOf(site), {.step = 0, .completing = true}, now_ms);
}

// One such action comes at that time, and nothing a millisecond earlier.
template <typename T>
bool HappensAt(RoundTable& table, int64_t now_ms) {
  return table.Tick(now_ms - 1).empty() && ActionsOf<T>(table.Tick(now_ms)).size() == 1;
}

inline std::vector<core::SiteId> Names(const CloseRound& close) {
  std::vector<core::SiteId> names;
  for (const CloseRound::Contributor& contributor : close.contributors) names.push_back(contributor.site);
  return names;
}

inline std::vector<double> Weights(const CloseRound& close) {
  std::vector<double> weights;
  for (const CloseRound::Contributor& contributor : close.contributors) weights.push_back(contributor.weight);
  return weights;
}

}  // namespace causeway::server
