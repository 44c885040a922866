// Words for the tests of the rules: a method for each event, and the actions of one kind.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/rounds/gone_names.h"
#include "server/rounds/run_rules.h"

namespace causeway::server {

inline constexpr int64_t kLeaseMs = 1000;

struct Joined : JoinDecision {
  Actions actions;
};
struct Beat {
  core::Step step = 0;
  bool completing = false;
  int64_t unheard_ms = 0;
  std::string standing_still;
};

// Events without a time come with the last one's.
class RulesForTest : public RunRules {
 public:
  RulesForTest(const RoundSettings& settings, core::RoundState state, int64_t now_ms, const core::SiteId& seeder = "")
      : RunRules(settings, std::move(state), now_ms, seeder), now_ms_(now_ms) {}

  Joined Join(const JoinRequest& request, int64_t now_ms) {
    const Outcome outcome = At(request, now_ms);
    return {outcome.join, outcome.actions};
  }
  Actions Heard(const core::SiteId& site, const core::SessionId& session, const Beat& beat, int64_t now_ms) {
    return At(SiteReport{site, session, beat.step, /*tokens=*/0, beat.completing, beat.unheard_ms, beat.standing_still},
              now_ms)
        .actions;
  }
  void Disconnected(const core::SiteId& site, const core::SessionId& session, int64_t now_ms) {
    At(SiteDisconnected{site, session}, now_ms);
  }
  Actions Leave(const core::SiteId& site, const core::SessionId& session, bool finished, const std::string& reason,
                int64_t now_ms) {
    return At(SiteLeaves{site, session, finished, reason}, now_ms).actions;
  }
  Actions Seeded() { return At(SeedComplete{}, now_ms_).actions; }
  Actions Ready(const core::SiteId& site, const core::SessionId& session) {
    return At(SiteReady{site, session}, now_ms_).actions;
  }
  Actions Admit(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                int64_t transfer_ms, int64_t now_ms, int64_t parameters = 0) {
    return At(ContributionAdmitted{site, fragment, contribution, transfer_ms, parameters}, now_ms).actions;
  }
  Actions RefuseValues(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                       const std::string& why, int64_t now_ms) {
    return At(ContributionRefused{site, fragment, contribution, why}, now_ms).actions;
  }
  Actions HeardOfShard(int shard, const ShardReport& report) {
    return At(ShardReported{shard, report}, now_ms_).actions;
  }
  Actions Follow(const core::Membership& membership, int64_t now_ms) {
    return At(MembershipChanged{membership}, now_ms).actions;
  }
  absl::Status Pause() { return At(PauseRun{}, now_ms_).status; }
  absl::Status Resume() { return At(ResumeRun{}, now_ms_).status; }
  void Doubt(const std::string& why) { At(HoldRun{Hold::kDoubt, why}, now_ms_); }
  absl::Status Release(const core::SiteId& site, Actions& actions, int64_t now_ms) {
    return With(ReleaseSite{site}, actions, now_ms);
  }
  absl::Status RollBack(core::Version version, Actions& actions, int64_t now_ms) {
    return With(RollBackRun{version}, actions, now_ms);
  }
  Actions Tick(int64_t now_ms) { return At(server::Tick{}, now_ms).actions; }
  void StoodStill(int64_t from_ms, int64_t to_ms) { At(server::StoodStill{from_ms}, to_ms); }

 private:
  Outcome At(const RunEvent& event, int64_t now_ms) { return Handle(event, now_ms_ = now_ms); }
  absl::Status With(const RunEvent& event, Actions& actions, int64_t now_ms) {
    Outcome outcome = At(event, now_ms);
    actions = std::move(outcome.actions);
    return outcome.status;
  }

  int64_t now_ms_;
};

inline RoundSettings Rules(int64_t sync_every = 8, int num_fragments = 1, int64_t delay = 0, int min_sites = 1) {
  RoundSettings rules;
  rules.sync.sync_every = sync_every;
  rules.sync.num_fragments = num_fragments;
  rules.sync.fragment_sync_delay = delay;
  rules.membership.min_sites = min_sites;
  rules.membership.lease_ms = kLeaseMs;
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
  table.Seeded();
  return table.Ready(site, SessionOf(site));
}

// A run in which these sites are; it has begun with the last of them.
inline RulesForTest TableOf(const std::vector<core::SiteId>& sites, const RoundSettings& rules) {
  RulesForTest table(rules, {}, 0);
  for (const core::SiteId& site : sites) Arrive(table, site);
  return table;
}
inline RulesForTest TableOf(const std::vector<core::SiteId>& sites) {
  return TableOf(sites, Rules(8, 1, 0, static_cast<int>(sites.size())));
}

inline absl::Status Check(const RulesForTest& table, const core::SiteId& site, core::FragmentId fragment,
                          core::Version base, int64_t tokens = 100, int64_t steps = 10) {
  return table.CheckContribution(site, SessionOf(site), fragment, {.base = base, .tokens = tokens, .steps = steps});
}

// Checked and admitted, as the coordinator does it; a refusal ends the test.
inline Actions Contribute(RulesForTest& table, const core::SiteId& site, core::FragmentId fragment, core::Version base,
                          int64_t now_ms = 0, int64_t tokens = 100, int64_t steps = 10) {
  const absl::Status status = Check(table, site, fragment, base, tokens, steps);
  if (!status.ok()) std::abort();
  return table.Admit(site, fragment, {.base = base, .tokens = tokens, .steps = steps}, /*transfer_ms=*/0, now_ms);
}

inline Actions LeaveRun(RulesForTest& table, const core::SiteId& site, bool finished = false, int64_t now_ms = 0) {
  return table.Leave(site, SessionOf(site), finished, "said so", now_ms);
}

// One such action comes at that time, and nothing a millisecond earlier.
template <typename T>
bool HappensAt(RulesForTest& table, int64_t now_ms) {
  return table.Tick(now_ms - 1).empty() && ActionsOf<T>(table.Tick(now_ms)).size() == 1;
}

inline std::vector<core::SiteId> Names(const CloseRound& close) {
  std::vector<core::SiteId> names;
  for (const CloseRound::Contributor& contributor : close.contributors) names.push_back(contributor.site);
  return names;
}

}  // namespace causeway::server
