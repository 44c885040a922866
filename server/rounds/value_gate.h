// Accepts or refuses contributions by their length. A site whose arithmetic has gone wrong, or that means harm, sends
// values that are well-formed but ruin the model; compared with those of recent rounds they are long.
//
//   bound = gate · median(‖d‖ merged in the fragment's last 16 rounds) · max(1, steps / H)
//
// With fewer than four rounds, the longest of the rounds' own medians: contributions grow from round to round while the
// learning rate warms up, and more where error feedback gathers what a sparse codec leaves behind; but no site alone,
// nor one whose contribution was scaled down, makes room for its next.
//
// The last factor is for a site that was away: its contribution carries more steps, at most twice as many as there were
// rounds since its last one. Without history the other contributions of the round decide, if there are at least three;
// otherwise the root mean square of a value, which may be 1 at most: parameters are seldom that large, let alone their
// change in a round. A site that trains alone is compared with the rounds of its present stay. A short contribution is
// never lengthened. ‖d‖ is the norm of the decoded contribution.
//
// Pure; one owner at a time. Source: docs/security.md, section "Values".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/membership.h"
#include "core/round_config.h"

namespace causeway::server {

inline constexpr size_t kRoundsForMedian = 4;
inline constexpr int kRefusalsToQuarantine =
    3;  // in a row: one may be chance, and its values go out again with the next
// Without a gate, or with one that scales: a contribution this many times longer than the typical one raises an alarm.
inline constexpr double kAlarmingRatio = 8;

// The length against which a contribution is measured.
struct NormBound {
  double typical = 0;  // the median or the longest, times the factor for steps
  std::string of;      // "the median of 16 rounds"

  double Ratio(double norm) const { return norm / typical; }
};

struct JudgedContribution {
  core::FragmentId fragment = 0;
  core::Admitted admitted;         // with its norm
  int64_t parameters = 0;          // of the fragment
  core::Version rounds_since = 0;  // since its last merged contribution, or its first version
  std::vector<double> others;      // norms of the others in the open round
};

NormBound BoundOf(const JudgedContribution& judged, const core::NormsOfRounds& history, int64_t sync_every);

// The median; for an even number of values, the lower of the two in the middle. Needs at least one value.
double Median(std::vector<double> values);

// Shares that sum to 1, none above `cap`: any excess goes to the others pro rata, until there is none. Where the cap
// leaves no room (cap × contributors ≤ 1), all are equal.
std::vector<double> CappedShares(std::span<const double> weights, double cap);

}  // namespace causeway::server
