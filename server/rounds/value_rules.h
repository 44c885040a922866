// Accepts contributions by their counts and values (server/rounds/value_gate.h), and determines the weight of each.
// One owner at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

  void Admit(const ContributionAdmitted& event);  // before its round has it
  void Refuse(const ContributionRefused& event);  // several in a row put the site in quarantine
  void Close(CloseRound& close);  // sets the weights, and the norms against which later ones are measured
  void RollBack(core::Version version);
  absl::Status Release(const core::SiteId& site);  // from quarantine
  void Forget(const core::SiteId& site);           // it is gone

  // Contributions of recent rounds that were merged although they were long: there is no gate, or one that scales.
  const std::vector<Outlier>& outliers() const { return outliers_; }

 private:
  absl::Status CheckQuarantine(const core::SiteId& site, core::FragmentId fragment) const;
  absl::Status CheckCounts(const core::SiteId& site, core::FragmentId fragment,
                           const core::Admitted& contribution) const;
  int64_t CountedSteps(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution) const;
  NormBound BoundFor(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                     int64_t parameters) const;
  void Weigh(CloseRound& close, std::vector<std::string>& said) const;
  void Cap(CloseRound& close, std::vector<std::string>& said) const;
  void Clip(CloseRound& close, std::vector<std::string>& said) const;

  RunFacts& facts_;
  std::vector<Outlier> outliers_;  // whose rounds are not over
};

}  // namespace causeway::server
