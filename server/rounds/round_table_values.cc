// Accepts contributions by their counts and values, and determines the weight of each.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "server/rounds/round_table.h"

namespace causeway::server {

using core::FragmentId;
using core::SiteId;
using core::SiteRecord;
using core::Version;

namespace {

constexpr double kEver = 1e15;  // rounds

std::string Describe(const NormBound& bound, double norm) {
  return absl::StrFormat("norm %.2g is %.2g times %s", norm, bound.Ratio(norm), bound.of);
}

// The rounds that a contribution is compared with. A site that trains alone and came back without its checkpoint begins
// with a fresh optimizer, whose first steps are long; no other site says what is usual now. So the rounds of its
// present stay alone count then, and before the first of them none, unless it has been refused: then it is no fresh
// start.
core::NormsOfRounds HistoryFor(const core::RoundState& state, const SiteId& site, FragmentId fragment) {
  const core::NormsOfRounds& all = state.norms[fragment];
  const auto active = std::ranges::count_if(state.sites, [](const auto& one) { return IsActive(one.second.state); });
  const SiteRecord& record = state.sites.at(site);
  if (active > 1) return all;
  core::NormsOfRounds own;
  std::ranges::copy_if(all, std::back_inserter(own),
                       [&](const auto& round) { return round.version > record.first_versions[fragment]; });
  return own.empty() && record.refusals > 0 ? all : own;
}

}  // namespace

absl::Status RoundTable::CheckCounts(const SiteId& site, const core::Admitted& contribution) const {
  const int64_t tokens = contribution.tokens, steps = contribution.steps;
  if (tokens < 0 || steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected tokens and steps of at least 0, got ", tokens, " tokens and ", steps, " steps"));
  }
  if (rules_.membership.weights != core::WeightRule::kUniform && (tokens == 0 || steps == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("contributions are weighted by tokens (weights): expected at least one token and one step, got ",
                     tokens, " tokens and ", steps, " steps"));
  }
  const int64_t per_step = rules_.max_tokens_per_step == nullptr ? 0 : rules_.max_tokens_per_step(site);
  if (per_step == 0 || tokens / per_step + (tokens % per_step != 0) <= steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", per_step, " tokens in each of ", steps,
                                                 " steps (run.yaml's batch, or membership.max_tokens_per_step), got ",
                                                 tokens));
}

// The steps that count for a weight. In synchronous mode a site takes sync_every between two rounds; one that joins
// anew repeats some, so more are no reason for refusal. In quorum mode it steps as often as it likes.
int64_t RoundTable::CountedSteps(const SiteId& site, FragmentId fragment, const core::Admitted& contribution) const {
  const Version rounds = contribution.base - state_.sites.at(site).last_merged[fragment];
  const int64_t most = (std::max<Version>(0, rounds) + 1) * rules_.sync.sync_every;
  return synchronous() ? std::min(contribution.steps, most) : contribution.steps;
}

absl::Status RoundTable::CheckQuarantine(const SiteId& site, FragmentId fragment) const {
  const SiteRecord& record = state_.sites.at(site);
  if (record.quarantined) {
    return absl::FailedPreconditionError(absl::StrCat(
        "site ", site, " is in quarantine after ", record.refusals,
        " refused contributions: an operator's causewayctl release --site=", site, " lets it start from the anchor"));
  }
  const auto refused = open_[fragment].refused.find(site);
  return refused == open_[fragment].refused.end() ? absl::OkStatus() : absl::FailedPreconditionError(refused->second);
}

NormBound RoundTable::BoundFor(const SiteId& site, FragmentId fragment, const core::Admitted& contribution,
                               int64_t parameters) const {
  const SiteRecord& record = state_.sites.at(site);
  const Version since = std::max(record.last_merged[fragment], record.first_versions[fragment] - 1);
  JudgedContribution judged{.fragment = fragment,
                            .admitted = contribution,
                            .parameters = parameters,
                            .rounds_since = state_.versions[fragment] - since,
                            .others = {}};
  for (const auto& [other, admitted] : state_.contributions[fragment]) {
    if (other != site && admitted.norm > 0) judged.others.push_back(admitted.norm);
  }
  return BoundOf(judged, HistoryFor(state_, site, fragment), rules_.sync.sync_every);
}

std::optional<std::string> RoundTable::WhyTooLong(const SiteId& site, FragmentId fragment,
                                                  const core::Admitted& contribution, int64_t parameters) const {
  if (rules_.values.gate == 0 || rules_.values.clip) return std::nullopt;
  const NormBound bound = BoundFor(site, fragment, contribution, parameters);
  if (bound.Ratio(contribution.norm) <= rules_.values.gate) return std::nullopt;
  return absl::StrCat(Describe(bound, contribution.norm), "; at most ", rules_.values.gate, " are taken (values.gate)");
}

Actions RoundTable::RefuseValues(const SiteId& site, FragmentId fragment, const core::Admitted& contribution,
                                 const std::string& why, int64_t now_ms) {
  SetNow(now_ms);
  CHECK(!state_.contributions[fragment].contains(site));
  Actions actions;
  open_[fragment].refused[site] = absl::StrCat("base version ", contribution.base, ": ", why);
  SiteRecord& record = state_.sites[site];
  if (++record.refusals >= kRefusalsToQuarantine) {
    record.quarantined = true;
    record.reason =
        absl::StrCat("in quarantine: ", record.refusals,
                     " contributions in a row were refused, the last one to fragment ", fragment, " because ", why);
  }
  CloseRounds(actions);
  DropStranded(actions);
  return actions;
}

void RoundTable::NoteOutlier(const SiteId& site, FragmentId fragment, const core::Admitted& contribution,
                             int64_t parameters) {
  if (contribution.norm <= 0 || parameters == 0) return;
  const NormBound bound = BoundFor(site, fragment, contribution, parameters);
  if (bound.Ratio(contribution.norm) <= kAlarmingRatio) return;
  // Scaled to the gate it is soon undone; otherwise by as many rounds as it was too long, at the least.
  const double ratio = rules_.values.clip ? 0 : std::min(bound.Ratio(contribution.norm), kEver);
  const core::Version rounds = std::max<core::Version>(core::kNormRounds, static_cast<core::Version>(ratio));
  outliers_.push_back({site, fragment, state_.versions[fragment], Describe(bound, contribution.norm), rounds});
}

// Sets the weight of each contribution, and the norms against which later ones are measured.
void RoundTable::Weigh(FragmentId fragment, CloseRound& close) {
  const auto& contributors = state_.contributions[fragment];
  std::vector<double> weights, norms;
  std::vector<std::string> said;
  for (CloseRound::Contributor& contributor : close.contributors) {
    const core::Admitted& admitted = contributors.at(contributor.site);
    const int64_t steps = CountedSteps(contributor.site, fragment, admitted);
    const double share = steps == admitted.steps ? 1 : static_cast<double>(steps) / static_cast<double>(admitted.steps);
    const auto tokens = static_cast<int64_t>(std::max(1.0, share * static_cast<double>(admitted.tokens)));
    contributor.weight =
        ContributionWeight(rules_.membership.weights, steps == admitted.steps ? admitted.tokens : tokens, steps);
    if (steps < admitted.steps && rules_.membership.weights != core::WeightRule::kUniform) {
      said.push_back(absl::StrCat(contributor.site, " ", admitted.steps, " steps, counted as ", steps));
    }
    weights.push_back(contributor.weight);
    if (admitted.norm > 0) norms.push_back(admitted.norm);
  }
  if (const double cap = rules_.values.weight_cap; cap > 0) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const std::vector<double> shares = CappedShares(weights, cap);
    for (size_t i = 0; i < shares.size(); ++i) {
      const double before = weights[i] / sum;
      close.contributors[i].weight = shares[i];
      if (before > shares[i] * (1 + 1e-9)) {
        said.push_back(absl::StrFormat("%s %.2f, capped to %.2f", close.contributors[i].site, before, shares[i]));
      }
    }
  }
  for (CloseRound::Contributor& contributor : close.contributors) {
    const core::Admitted& admitted = contributors.at(contributor.site);
    if (!rules_.values.clip || admitted.norm <= 0 || HistoryFor(state_, contributor.site, fragment).empty()) continue;
    const NormBound bound = BoundFor(contributor.site, fragment, admitted, /*parameters=*/1);
    const double ratio = bound.Ratio(admitted.norm) / rules_.values.gate;
    if (ratio <= 1) continue;
    contributor.clip = static_cast<float>(1 / ratio);
    said.push_back(absl::StrFormat("%s scaled by %.2g", contributor.site, contributor.clip));
  }
  if (!said.empty()) absl::StrAppend(&close.reason, "; ", absl::StrJoin(said, ", "));
  core::NormsOfRounds& history = state_.norms[fragment];
  if (!norms.empty()) history.push_back({close.base + 1, std::move(norms)});
  if (history.size() > core::kNormRounds) history.pop_front();
  std::erase_if(outliers_, [&](const Outlier& outlier) {
    return outlier.fragment == fragment && outlier.base + outlier.rounds <= close.base;
  });
}

}  // namespace causeway::server
