// Which contributions are taken, by their length. A site whose arithmetic has gone wrong, or that means harm, sends
// values that are well-formed and ruin the model; next to those of late rounds they are long.
//
//   bound = gate · median(‖d‖ merged in the fragment's last 16 rounds) · max(1, steps / H)
//
// The last factor is for a site that was away: its contribution carries more steps, at most twice as many as there were
// rounds since its last one. Without history the other contributions of the round decide, from three on; else the root
// mean square of a value, which is 1 at most: parameters are seldom that large, let alone what they move in a round.
// A short contribution is never lengthened. ‖d‖ is of what the contribution decodes to.
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

inline constexpr int kRefusalsToQuarantine = 3;  // in a row: one may be chance, and is sent again with the next
// Without a gate, and with one that scales: what is beyond that many medians raises an alarm.
inline constexpr double kAlarmingRatio = 8;

// The length that a contribution is measured against.
struct NormBound {
  double typical = 0;  // the median, times the factor for steps
  std::string of;      // "the median of 16 rounds"

  double Ratio(double norm) const { return norm / typical; }
};

struct JudgedContribution {
  core::FragmentId fragment = 0;
  core::Admitted admitted;         // with its norm
  int64_t parameters = 0;          // of the fragment
  core::Version rounds_since = 0;  // its last merged contribution, or its first version
  std::vector<double> others;      // norms of those that the open round has
};

NormBound BoundOf(const JudgedContribution& judged, const core::NormsOfRounds& history, int64_t sync_every);

// The median; of an even number the lower of the two in the middle. There is at least one.
double Median(std::vector<double> values);

// Shares of a sum of 1, none beyond `cap`: what is beyond goes to the others pro rata, until none is. Where the cap
// leaves no room (cap × contributors ≤ 1) all are equal.
std::vector<double> CappedShares(std::span<const double> weights, double cap);

}  // namespace causeway::server
