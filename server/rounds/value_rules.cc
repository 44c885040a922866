#include "server/rounds/value_rules.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "server/rounds/pace.h"

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

absl::Status ValueRules::Check(const SiteId& site, FragmentId fragment, const core::Admitted& contribution) const {
  RETURN_IF_ERROR(CheckQuarantine(site, fragment));
  return CheckCounts(site, fragment, contribution);
}

absl::Status ValueRules::CheckCounts(const SiteId& site, FragmentId fragment,
                                     const core::Admitted& contribution) const {
  const int64_t tokens = contribution.tokens, steps = contribution.steps;
  if (tokens < 0 || steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected tokens and steps of at least 0, got ", tokens, " tokens and ", steps, " steps"));
  }
  if (facts_.Of(fragment).membership.weights != core::WeightRule::kUniform && (tokens == 0 || steps == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("contributions are weighted by tokens (weights): expected at least one token and one step, got ",
                     tokens, " tokens and ", steps, " steps"));
  }
  const int64_t per_step =
      facts_.settings.max_tokens_per_step == nullptr ? 0 : facts_.settings.max_tokens_per_step(site);
  if (per_step == 0 || tokens / per_step + (tokens % per_step != 0) <= steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", per_step, " tokens in each of ", steps,
                                                 " steps (run.yaml's batch, or membership.max_tokens_per_step), got ",
                                                 tokens));
}

// The steps that count for a weight. In synchronous mode a site takes sync_every between two rounds; one that joins
// anew repeats some, so more are no reason for refusal. In quorum mode it steps as often as it likes.
int64_t ValueRules::CountedSteps(const SiteId& site, FragmentId fragment, const core::Admitted& contribution) const {
  const Version rounds = contribution.base - facts_.state.sites.at(site).last_merged[fragment];
  const int64_t most = (std::max<Version>(0, rounds) + 1) * facts_.settings.sync.sync_every;
  return facts_.synchronous() ? std::min(contribution.steps, most) : contribution.steps;
}

absl::Status ValueRules::CheckQuarantine(const SiteId& site, FragmentId fragment) const {
  const SiteRecord& record = facts_.state.sites.at(site);
  if (record.quarantined) {
    return absl::FailedPreconditionError(absl::StrCat(
        "site ", site, " is in quarantine after ", record.refusals,
        " refused contributions: an operator's causewayctl release --site=", site, " lets it start from the anchor"));
  }
  const auto refused = facts_.refused[fragment].find(site);
  return refused == facts_.refused[fragment].end() ? absl::OkStatus() : absl::FailedPreconditionError(refused->second);
}

NormBound ValueRules::BoundFor(const SiteId& site, FragmentId fragment, const core::Admitted& contribution,
                               int64_t parameters) const {
  const SiteRecord& record = facts_.state.sites.at(site);
  const Version since = std::max(record.last_merged[fragment], record.first_versions[fragment] - 1);
  JudgedContribution judged{.fragment = fragment,
                            .admitted = contribution,
                            .parameters = parameters,
                            .rounds_since = facts_.state.versions[fragment] - since,
                            .others = {}};
  for (const auto& [other, admitted] : facts_.state.contributions[fragment]) {
    if (other != site && admitted.norm > 0) judged.others.push_back(admitted.norm);
  }
  return BoundOf(judged, HistoryFor(facts_.state, site, fragment), facts_.settings.sync.sync_every);
}

std::optional<std::string> ValueRules::WhyTooLong(const SiteId& site, FragmentId fragment,
                                                  const core::Admitted& contribution, int64_t parameters) const {
  const core::ValuesConfig& values = facts_.Of(fragment).values;
  if (values.gate == 0 || values.clip) return std::nullopt;
  const NormBound bound = BoundFor(site, fragment, contribution, parameters);
  if (bound.Ratio(contribution.norm) <= values.gate) return std::nullopt;
  return absl::StrCat(Describe(bound, contribution.norm), "; at most ", values.gate, " are taken (values.gate)");
}

void ValueRules::Refuse(const ContributionRefused& event) {
  CHECK(!facts_.state.contributions[event.fragment].contains(event.site));
  facts_.refused[event.fragment][event.site] = absl::StrCat("base version ", event.contribution.base, ": ", event.why);
  SiteRecord& record = facts_.state.sites[event.site];
  if (++record.refusals < kRefusalsToQuarantine) return;
  record.quarantined = true;
  record.reason = absl::StrCat("in quarantine: ", record.refusals,
                               " contributions in a row were refused, the last one to fragment ", event.fragment,
                               " because ", event.why);
}

void ValueRules::Admit(const ContributionAdmitted& event) {
  const core::Admitted& contribution = event.contribution;
  if (contribution.norm > 0 && event.parameters > 0) {
    const NormBound bound = BoundFor(event.site, event.fragment, contribution, event.parameters);
    if (bound.Ratio(contribution.norm) > kAlarmingRatio) {
      // Scaled to the gate it is soon undone; otherwise by as many rounds as it was too long, at the least.
      const double ratio = facts_.Of(event.fragment).values.clip ? 0 : std::min(bound.Ratio(contribution.norm), kEver);
      outliers_.push_back({.site = event.site,
                           .fragment = event.fragment,
                           .base = facts_.state.versions[event.fragment],
                           .text = Describe(bound, contribution.norm),
                           .rounds = std::max<Version>(core::kNormRounds, static_cast<Version>(ratio))});
    }
  }
  facts_.state.sites[event.site].refusals = 0;
}

void ValueRules::RollBack(Version version) {
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    std::erase_if(facts_.state.norms[p], [&](const core::RoundNorms& round) { return round.version > version; });
    facts_.refused[p].clear();
  }
  std::erase_if(outliers_, [&](const Outlier& outlier) { return outlier.base >= version; });
}

absl::Status ValueRules::Release(const SiteId& site) {
  const auto found = facts_.state.sites.find(site);
  if (found == facts_.state.sites.end()) {
    return absl::FailedPreconditionError(absl::StrCat("the run has no site ", site));
  }
  SiteRecord& record = found->second;
  // Another shard may have the site in quarantine, without reporting it here.
  if (!record.quarantined && facts_.settings.shard.alone()) {
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " is not in quarantine"));
  }
  record.quarantined = false;
  record.refusals = 0;
  record.starts_anew = true;
  ++record.releases;
  return absl::OkStatus();
}

void ValueRules::Forget(const SiteId& site) {
  for (auto& refused : facts_.refused) refused.erase(site);
}

void ValueRules::Close(CloseRound& close) {
  std::vector<std::string> said;
  Weigh(close, said);
  Cap(close, said);
  Clip(close, said);
  if (!said.empty()) absl::StrAppend(&close.reason, "; ", absl::StrJoin(said, ", "));
  std::vector<double> norms;
  for (const CloseRound::Contributor& contributor : close.contributors) {
    const double norm = facts_.state.contributions[close.fragment].at(contributor.site).norm;
    if (norm > 0) norms.push_back(norm);
  }
  core::NormsOfRounds& history = facts_.state.norms[close.fragment];
  if (!norms.empty()) history.push_back({close.base + 1, std::move(norms)});
  if (history.size() > core::kNormRounds) history.pop_front();
  facts_.refused[close.fragment].clear();
  std::erase_if(outliers_, [&](const Outlier& outlier) {
    return outlier.fragment == close.fragment && outlier.base + outlier.rounds <= close.base;
  });
}

void ValueRules::Weigh(CloseRound& close, std::vector<std::string>& said) const {
  const core::WeightRule rule = facts_.Of(close.fragment).membership.weights;
  for (CloseRound::Contributor& contributor : close.contributors) {
    const core::Admitted& admitted = facts_.state.contributions[close.fragment].at(contributor.site);
    const int64_t steps = CountedSteps(contributor.site, close.fragment, admitted);
    const double share = steps == admitted.steps ? 1 : static_cast<double>(steps) / static_cast<double>(admitted.steps);
    const auto tokens = static_cast<int64_t>(std::max(1.0, share * static_cast<double>(admitted.tokens)));
    contributor.weight = ContributionWeight(rule, steps == admitted.steps ? admitted.tokens : tokens, steps);
    if (steps < admitted.steps && rule != core::WeightRule::kUniform) {
      said.push_back(absl::StrCat(contributor.site, " ", admitted.steps, " steps, counted as ", steps));
    }
  }
}

void ValueRules::Cap(CloseRound& close, std::vector<std::string>& said) const {
  const double cap = facts_.Of(close.fragment).values.weight_cap;
  if (cap == 0) return;
  std::vector<double> weights;
  for (const CloseRound::Contributor& contributor : close.contributors) weights.push_back(contributor.weight);
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

void ValueRules::Clip(CloseRound& close, std::vector<std::string>& said) const {
  const core::ValuesConfig& values = facts_.Of(close.fragment).values;
  if (!values.clip) return;
  for (CloseRound::Contributor& contributor : close.contributors) {
    const core::Admitted& admitted = facts_.state.contributions[close.fragment].at(contributor.site);
    if (admitted.norm <= 0 || HistoryFor(facts_.state, contributor.site, close.fragment).empty()) continue;
    const NormBound bound = BoundFor(contributor.site, close.fragment, admitted, /*parameters=*/1);
    const double ratio = bound.Ratio(admitted.norm) / values.gate;
    if (ratio <= 1) continue;
    contributor.clip = static_cast<float>(1 / ratio);
    said.push_back(absl::StrFormat("%s scaled by %.2g", contributor.site, contributor.clip));
  }
}

}  // namespace causeway::server
