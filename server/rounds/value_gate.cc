#include "server/rounds/value_gate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace causeway::server {
namespace {

constexpr double kMostRoundsOfSteps = 4;

double Nth(std::vector<double> values, int64_t place) {
  CHECK(!values.empty());
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[place];
}

// The version's round had at least three contributions, and more than half of them were not scaled.
bool MostWereNotScaled(const core::RoundState& state, core::FragmentId fragment, core::Version version) {
  int all = 0, scaled = 0;
  for (const auto& [site, record] : state.sites) {
    const MergedOfSite* const merged = HistoryOf(record, fragment);
    if (merged == nullptr) continue;
    const auto found = std::ranges::find(*merged, version, &core::Merged::version);
    if (found == merged->end()) continue;
    ++all;
    scaled += found->factor < 1;
  }
  return all >= 3 && 2 * scaled < all;
}

}  // namespace

const MergedOfSite* HistoryOf(const core::SiteRecord& record, core::FragmentId fragment) {
  return record.merged.empty() || record.merged[fragment].empty() ? nullptr : &record.merged[fragment];
}

double UpperMedian(std::vector<double> values) {
  const int64_t middle = std::ssize(values) / 2;
  return Nth(std::move(values), middle);
}

std::optional<double> OwnLength(const MergedOfSite& merged) {
  if (merged.empty()) return std::nullopt;
  std::vector<double> lengths;
  for (const core::Merged& one : merged) lengths.push_back(one.length());
  if (lengths.size() < kFewMerged) return std::ranges::max(lengths);
  const int64_t lower = (std::ssize(lengths) - 1) / 2;
  return Nth(std::move(lengths), lower);
}

double StepsFactor(int64_t steps, core::Version rounds_since, int64_t sync_every) {
  const double rounds = static_cast<double>(steps) / static_cast<double>(sync_every);
  const double possible = 2.0 * static_cast<double>(std::max<core::Version>(1, rounds_since));
  return std::max(1.0, std::min({rounds, possible, kMostRoundsOfSteps}));
}

bool IsBroken(const core::RoundState& state, const core::SiteId& site, core::FragmentId fragment) {
  const MergedOfSite* const merged = HistoryOf(state.sites.at(site), fragment);
  if (merged == nullptr || std::ssize(*merged) < kScaledToBroken) return false;
  return std::all_of(merged->end() - kScaledToBroken, merged->end(), [&](const core::Merged& one) {
    return one.factor < 1 && MostWereNotScaled(state, fragment, one.version);
  });
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
