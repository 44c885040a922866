#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/rounds/round_table.h"
#include "server/rounds/run_events.h"

namespace causeway::server {

class RunRules {
 public:
  // A new run, or one that continues from a saved state: all leases start anew at `now_ms`. `seeder`: the site from
  // which the initial parameters were requested; the request is repeated when it is back.
  RunRules(const RoundSettings& settings, core::RoundState state, int64_t now_ms, const core::SiteId& seeder = "")
      : table_(settings, std::move(state), now_ms, seeder) {}

  Outcome Handle(const RunEvent& event, int64_t now_ms);

  // Whether this contribution may be accepted: OK; ALREADY_EXISTS if it was admitted or merged (the answer to a repeat,
  // even after its session ended); FAILED_PRECONDITION, with the reason, if it is refused; INVALID_ARGUMENT if only its
  // tokens and steps are wrong: a ContributionRefused follows.
  absl::Status CheckContribution(const core::SiteId& site, const core::SessionId& session, core::FragmentId fragment,
                                 const core::Admitted& contribution) const {
    return table_.CheckContribution(site, session, fragment, contribution);
  }
  // Why the length of a contribution that CheckContribution has accepted is refused (server/rounds/value_gate.h), for
  // `parameters` values; nothing if it is accepted.
  std::optional<std::string> WhyTooLong(const core::SiteId& site, core::FragmentId fragment,
                                        const core::Admitted& contribution, int64_t parameters) const {
    return table_.WhyTooLong(site, fragment, contribution, parameters);
  }

  const core::RoundState& state() const { return table_.state(); }
  RunState run_state() const { return table_.run_state(); }
  std::string Reason() const { return table_.Reason(); }
  bool held() const { return table_.held(); }
  bool doubted() const { return table_.doubted(); }
  RoundPhase Phase(core::FragmentId fragment) const { return table_.Phase(fragment); }
  std::string RoundReason(core::FragmentId fragment) const { return table_.RoundReason(fragment); }
  const std::vector<Outlier>& outliers() const { return table_.outliers(); }

  std::vector<core::SiteId> ActiveSites() const { return table_.ActiveSites(); }
  bool AnySiteIn() const { return table_.AnySiteIn(); }
  bool IsReady(const core::SiteId& site) const { return table_.IsReady(site); }
  std::vector<core::Version> LastAdmitted(const core::SiteId& site) const { return table_.LastAdmitted(site); }
  bool MayHaveForgotten(const core::SiteId& site) const { return table_.MayHaveForgotten(site); }

  core::Membership membership() const { return table_.membership(); }
  ShardReport report() const { return table_.report(); }

 private:
  RoundTable table_;
};

}  // namespace causeway::server
