// Accepts contributions by their counts and their length, and determines the weight and the factor of each. A site
// whose arithmetic has gone wrong, or that means harm, sends values that are well-formed but ruin the model; beside
// what is usual they are long. So are those of honest sites after a change of the learning rate, a pause, a restart
// without a checkpoint: a long contribution is therefore scaled, not refused.
//
//   own of a site    the median length of its last 16 contributions to the fragment, as they were merged (norm times
//                    factor); of fewer than four the longest
//   usual U          the upper median of own over the sites in the run: of two the longer, of four the third
//   allowed          gate · U · max(1, min(steps / H, 4, 2 · rounds since its last))
//
// Lengths count as merged, so that a contribution that was scaled raises the usual by as much as was let in. Before any
// site has a history, the round's own upper median is the usual if it has at least three contributions; with one or two
// none is long, because no third says which of them is wrong. A contribution without a length is no history.
//
// A site that was scaled three times in a row while most others were not is broken: it is merged at the usual length,
// without the gate's room, until it is not long. A length beyond 10⁹ · max(U, √values) is absurd, and is refused.
//
// One owner at a time. Source: docs/security.md, section "Values"; docs/decisions/0021-values-are-watched.md.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/membership.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

// Refusals in a row that put a site in quarantine: one may be chance, and its values go out again later.
inline constexpr int kRefusalsToQuarantine = 3;
inline constexpr int kScaledToBroken = 3;
inline constexpr size_t kFewMerged = 4;  // with fewer merged lengths, a site's own is the longest of them
inline constexpr double kAbsurdRatio = 1e9;
// Without a gate, a contribution this many times longer than the usual one raises an alarm.
inline constexpr double kAlarmingRatio = 8;

using MergedOfSite = std::deque<core::Merged>;  // oldest first

// The site's contributions to the fragment; null: none.
const MergedOfSite* HistoryOf(const core::SiteRecord& record, core::FragmentId fragment);
std::optional<double> OwnLength(const MergedOfSite& merged);  // nullopt without a history
// For an even number of values, the upper of the two in the middle. Needs at least one value.
double UpperMedian(std::vector<double> values);

// How many rounds' steps count for a contribution's length.
double StepsFactor(int64_t steps, core::Version rounds_since, int64_t sync_every);

// Whether the site's last three contributions to the fragment were scaled, each in a round of at least three of which
// more than half were not.
bool IsBroken(const core::RoundState& state, const core::SiteId& site, core::FragmentId fragment);

// Shares that sum to 1, none above `cap`: any excess goes to the others pro rata, until there is none. Where the cap
// leaves no room (cap × contributors ≤ 1), all are equal.
std::vector<double> CappedShares(std::span<const double> weights, double cap);

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

  void Admit(const core::SiteId& site);           // ends the site's quarantine
  void Refuse(const ContributionRefused& event);  // several in a row put the site in quarantine
  void Close(CloseRound& close);                  // sets weights and factors, and remembers the lengths
  void RollBack(core::Version version);
  // Ends the quarantine of the site or, if `site` is empty, of all that are in it. Returns the sites that join anew.
  absl::StatusOr<std::vector<core::SiteId>> Release(const core::SiteId& site);
  void Forget(const core::SiteId& site);  // the site is gone

  // Contributions of recent rounds that were merged although they were long; at most one of each site and kind.
  std::vector<core::Outlier> Outliers() const;

 private:
  struct Unscaled {
    core::Outlier outlier;
    core::Version rounds;  // how many rounds of contributions of the usual length would undo the outlier
  };

  int64_t CountedSteps(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution) const;
  std::optional<double> Usual(core::FragmentId fragment) const;  // U; nullopt without any history
  double Allowed(const core::SiteId& site, core::FragmentId fragment, int64_t steps, double usual) const;
  void Weigh(CloseRound& close, std::vector<std::string>& said) const;
  void Cap(CloseRound& close, std::vector<std::string>& said) const;
  void Scale(CloseRound& close, std::vector<std::string>& said);
  void Remember(const CloseRound& close);
  void AddScaled(const core::SiteId& site, std::vector<core::Outlier>& outliers) const;
  void AddApart(std::vector<core::Outlier>& outliers) const;

  RunFacts& facts_;
  std::vector<Unscaled> unscaled_;  // outliers whose rounds are not over
};

}  // namespace causeway::server
