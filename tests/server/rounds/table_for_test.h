// Words for the tests of the rules: a table with a clock that stands still, and the actions of one kind.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/rounds/round_table.h"

namespace causeway::server {

inline constexpr int64_t kLeaseMs = 1000;

inline RoundRules Rules(int64_t sync_every = 8, int num_fragments = 1, int64_t delay = 0, int min_sites = 1) {
  return {core::FragmentSchedule(sync_every, num_fragments, delay), min_sites, kLeaseMs};
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

// Joins, seeds if nobody has, and is ready. What the last step asked for.
inline Actions Arrive(RoundTable& table, const core::SiteId& site, int64_t now_ms = 0) {
  table.Join(site, SessionOf(site), {}, now_ms);
  table.Seeded();
  return table.Ready(site, SessionOf(site));
}

// Checked and admitted, as the coordinator does it; a refusal is a failure of the test that calls .value().
inline Actions Contribute(RoundTable& table, const core::SiteId& site, core::FragmentId fragment, core::Version base) {
  const absl::Status status = table.CheckContribution(site, SessionOf(site), fragment, base);
  if (!status.ok()) std::abort();
  return table.Admit(site, fragment, base);
}

inline Actions LeaveRun(RoundTable& table, const core::SiteId& site, bool finished = false) {
  return table.Leave(site, SessionOf(site), finished, "said so");
}

}  // namespace causeway::server
