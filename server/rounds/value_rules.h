// Accepts contributions by their counts and values (server/rounds/value_gate.h), and determines the weight of each.
// One owner at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rounds/run_actions.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"
#include "server/rounds/run_state.h"
#include "server/rounds/value_gate.h"

namespace causeway::server {

class ValueRules {
 public:
  explicit ValueRules(RunFacts& facts) : facts_(facts) {}

  // INVALID_ARGUMENT if only tokens and steps are wrong.
  absl::Status Check(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution) const;
  std::optional<std::string> WhyTooLong(const core::SiteId& site, core::FragmentId fragment,
                                        const core::Admitted& contribution, int64_t parameters) const;
  // FAILED_PRECONDITION: by these settings, but not by the present ones, a site's last contribution would be refused
  // for what it counts.
  absl::Status CheckChange(const core::MembershipConfig& membership, const TokensPerStep& max_tokens_per_step) const;

  void Admit(const core::SiteId& site);           // which ends its quarantine
  void Refuse(const ContributionRefused& event);  // several in a row put the site in quarantine
  void Close(CloseRound& close);                  // sets weights and factors, and remembers the lengths
  void RollBack(core::Version version);
  // From quarantine; of all sites: those that are. Returns those that join anew.
  absl::StatusOr<std::vector<core::SiteId>> Release(const core::SiteId& site);
  void Forget(const core::SiteId& site);  // it is gone

  // Contributions of recent rounds that were merged although they were long; at most one of each site and kind.
  std::vector<core::Outlier> Outliers() const;

 private:
  struct Unscaled {
    core::Outlier outlier;
    core::Version rounds;  // that contributions of the usual length need to undo it
  };

  int64_t CountedSteps(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution) const;
  std::optional<double> Usual(core::FragmentId fragment) const;  // U; nothing without any history
  double Allowed(const core::SiteId& site, core::FragmentId fragment, int64_t steps, double usual) const;
  void Weigh(CloseRound& close, std::vector<std::string>& said) const;
  void Cap(CloseRound& close, std::vector<std::string>& said) const;
  void Scale(CloseRound& close, std::vector<std::string>& said);
  void Remember(const CloseRound& close);
  void AddScaled(const core::SiteId& site, std::vector<core::Outlier>& outliers) const;
  void AddApart(std::vector<core::Outlier>& outliers) const;

  RunFacts& facts_;
  std::vector<Unscaled> unscaled_;  // whose rounds are not over
};

}  // namespace causeway::server
