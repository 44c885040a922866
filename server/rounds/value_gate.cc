#include "server/rounds/value_gate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {
namespace {

constexpr size_t kOthersThatDecide = 2;  // three, with the one being judged

double StepsFactor(const JudgedContribution& judged, int64_t sync_every) {
  const double steps = static_cast<double>(judged.admitted.steps) / static_cast<double>(sync_every);
  const double possible = 2.0 * static_cast<double>(std::max<core::Version>(1, judged.rounds_since));
  return std::max(1.0, std::min(steps, possible));
}

}  // namespace

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

NormBound BoundOf(const JudgedContribution& judged, const core::NormsOfRounds& history, int64_t sync_every) {
  const double factor = StepsFactor(judged, sync_every);
  std::vector<double> merged, medians;
  for (const core::RoundNorms& round : history) {
    // A round in which nothing moved says nothing about lengths.
    std::vector<double> norms = round.norms;
    std::erase(norms, 0.0);
    merged.insert(merged.end(), norms.begin(), norms.end());
    if (!norms.empty()) medians.push_back(Median(std::move(norms)));
  }
  if (!merged.empty()) {
    const size_t rounds = history.size();
    const bool few = rounds < kRoundsForMedian;
    return {(few ? std::ranges::max(medians) : Median(std::move(merged))) * factor,
            absl::StrCat(few ? "the longest of " : "the median of ", rounds, rounds == 1 ? " round" : " rounds")};
  }
  if (judged.others.size() >= kOthersThatDecide) {
    const double median = Median(judged.others);
    if (median > 0) return {median * factor, absl::StrCat("the median of the ", judged.others.size(), " others")};
  }
  return {std::sqrt(static_cast<double>(judged.parameters)) * factor,
          "one that moves each value by 1 (no round to compare it with yet)"};
}

std::vector<double> CappedShares(std::span<const double> weights, double cap) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  CHECK(sum > 0 && cap > 0);
  std::vector<double> shares;
  for (double weight : weights) shares.push_back(weight / sum);
  if (cap * static_cast<double>(shares.size()) <= 1) {
    std::ranges::fill(shares, 1.0 / static_cast<double>(shares.size()));
    return shares;
  }
  std::vector<bool> capped(shares.size(), false);
  while (true) {
    double taken = 0, free = 0;
    for (size_t i = 0; i < shares.size(); ++i) (capped[i] ? taken : free) += shares[i];
    if (free <= 0) return shares;
    const double stretch = (1 - taken) / free;
    bool again = false;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (capped[i]) continue;
      shares[i] *= stretch;
      if (shares[i] <= cap) continue;
      shares[i] = cap;
      capped[i] = again = true;
    }
    if (!again) return shares;
  }
}

}  // namespace causeway::server
