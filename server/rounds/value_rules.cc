#include "server/rounds/value_rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "server/rounds/heard.h"

namespace causeway::server {

using core::FragmentId;
using core::SiteId;
using core::SiteRecord;
using core::Version;

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

constexpr double kEver = 1e15;  // rounds

// INVALID_ARGUMENT names the setting that is broken.
absl::Status CheckCounts(const SiteId& site, const core::Admitted& contribution, core::WeightRule weights,
                         const TokensPerStep& max_tokens_per_step) {
  const int64_t tokens = contribution.tokens, steps = contribution.steps;
  if (tokens < 0 || steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected tokens and steps of at least 0, got ", tokens, " tokens and ", steps, " steps"));
  }
  if (weights != core::WeightRule::kUniform && (tokens == 0 || steps == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "contributions are weighted by tokens (membership.weights): expected at least one token and one step, got ",
        tokens, " tokens and ", steps, " steps"));
  }
  const int64_t per_step = max_tokens_per_step == nullptr ? 0 : max_tokens_per_step(site);
  if (per_step == 0 || tokens / per_step + (tokens % per_step != 0) <= steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", per_step, " tokens in each of ", steps,
                                                 " steps (run.yaml's batch, or membership.max_tokens_per_step), got ",
                                                 tokens));
}

bool IsIn(const SiteRecord& record) { return record.state != core::SiteState::kGone; }

std::string Describe(double norm, double allowed, double usual) {
  return absl::StrFormat("norm %.2g is %.2g times the usual %.2g", norm, norm / allowed, usual);
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

// Counts are measured by the newest settings, whatever round they are for: what a change lets in comes in at once.
absl::Status ValueRules::Check(const SiteId& site, FragmentId fragment, const core::Admitted& contribution) const {
  const auto refused = facts_.refused[fragment].find(site);
  if (refused != facts_.refused[fragment].end()) return absl::FailedPreconditionError(refused->second);
  return CheckCounts(site, contribution, facts_.settings.membership.weights, facts_.settings.max_tokens_per_step);
}

absl::Status ValueRules::CheckChange(const core::MembershipConfig& membership,
                                     const TokensPerStep& max_tokens_per_step) const {
  const core::MembershipConfig& now = facts_.settings.membership;
  for (const auto& [site, record] : facts_.state.sites) {
    for (FragmentId p = 0; p < facts_.num_fragments() && IsIn(record); ++p) {
      const MergedOfSite* const merged = HistoryOf(record, p);
      if (merged == nullptr) continue;
      const core::Admitted& last = merged->back().admitted;
      if (!CheckCounts(site, last, now.weights, facts_.settings.max_tokens_per_step).ok()) continue;
      const absl::Status after = CheckCounts(site, last, membership.weights, max_tokens_per_step);
      if (after.ok()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("site ", site, "'s last contribution would be refused: ", after.message()));
    }
  }
  return absl::OkStatus();
}

// The steps that count for a weight. In synchronous mode a site takes sync_every between two rounds; one that joins
// anew repeats some, so more are no reason for refusal. In quorum mode it steps as often as it likes.
int64_t ValueRules::CountedSteps(const SiteId& site, FragmentId fragment, const core::Admitted& contribution) const {
  const Version rounds = contribution.base - facts_.state.sites.at(site).last_merged[fragment];
  const int64_t most = (std::max<Version>(0, rounds) + 1) * facts_.settings.sync.sync_every;
  return facts_.synchronous() ? std::min(contribution.steps, most) : contribution.steps;
}

std::optional<double> ValueRules::Usual(FragmentId fragment) const {
  std::vector<double> own;
  for (const auto& [site, record] : facts_.state.sites) {
    const MergedOfSite* const merged = IsIn(record) ? HistoryOf(record, fragment) : nullptr;
    if (merged != nullptr) own.push_back(*OwnLength(*merged));
  }
  return own.empty() ? std::nullopt : std::optional(UpperMedian(std::move(own)));
}

// The usual length, for as many steps.
double ValueRules::Allowed(const SiteId& site, FragmentId fragment, int64_t steps, double usual) const {
  const SiteRecord& record = facts_.state.sites.at(site);
  const Version before = record.first_versions.empty() ? -1 : record.first_versions[fragment] - 1;
  const Version since = std::max(record.last_merged[fragment], before);
  return usual * StepsFactor(steps, facts_.state.versions[fragment] - since, facts_.settings.sync.sync_every);
}

std::optional<std::string> ValueRules::WhyTooLong(const SiteId& site, FragmentId fragment,
                                                  const core::Admitted& contribution, int64_t parameters) const {
  const core::ValuesConfig& values = facts_.settings.values;
  if (values.gate == 0) return std::nullopt;
  const std::optional<double> usual = Usual(fragment);
  const double norm = contribution.norm, one = std::sqrt(static_cast<double>(parameters));
  if (!(norm <= kAbsurdRatio * std::max(usual.value_or(0), one))) {
    return absl::StrFormat("norm %.2g is absurd: the usual is %.2g, and %.2g moves each value by 1 (values.gate)", norm,
                           usual.value_or(0), one);
  }
  if (!usual || (values.clip && !facts_.state.sites.at(site).quarantined)) return std::nullopt;
  const double allowed = Allowed(site, fragment, contribution.steps, *usual);
  if (norm <= values.gate * allowed) return std::nullopt;
  return absl::StrCat(Describe(norm, allowed, *usual), "; at most ", values.gate, " are taken (values.gate)");
}

void ValueRules::Refuse(const ContributionRefused& event) {
  CHECK(!facts_.state.contributions[event.fragment].contains(event.site));
  facts_.refused[event.fragment][event.site] = absl::StrCat("base version ", event.contribution.base, ": ", event.why);
  SiteRecord& record = facts_.state.sites[event.site];
  if (!event.too_long || record.quarantined || ++record.refusals < kRefusalsToQuarantine) return;
  record.quarantined = true;
  record.reason = absl::StrCat("in quarantine: ", record.refusals,
                               " contributions in a row were refused, the last one to fragment ", event.fragment,
                               " because ", event.why);
}

void ValueRules::Admit(const SiteId& site) {
  SiteRecord& record = facts_.state.sites[site];
  if (record.quarantined) record.reason.clear();
  record.quarantined = false;
  record.refusals = 0;
}

void ValueRules::RollBack(Version version) {
  for (auto& [site, record] : facts_.state.sites) {
    for (MergedOfSite& merged : record.merged) {
      std::erase_if(merged, [&](const core::Merged& one) { return one.version > version; });
    }
  }
  for (auto& refused : facts_.refused) refused.clear();
  std::erase_if(unscaled_, [&](const Unscaled& one) { return one.outlier.version > version; });
}

absl::StatusOr<std::vector<SiteId>> ValueRules::Release(const SiteId& site) {
  if (!site.empty() && !facts_.state.sites.contains(site)) {
    return absl::FailedPreconditionError(absl::StrCat("the run has no site ", site));
  }
  std::vector<SiteId> released;
  for (auto& [name, record] : facts_.state.sites) {
    // Another shard may have the site in quarantine, without reporting it here.
    if ((!site.empty() && name != site) || (!record.quarantined && facts_.settings.shard.alone())) continue;
    record.quarantined = false;
    record.refusals = 0;
    record.starts_anew = true;
    ++record.releases;
    released.push_back(name);
  }
  if (!released.empty()) return released;
  return absl::FailedPreconditionError(site.empty() ? "no site is in quarantine"
                                                    : absl::StrCat("site ", site, " is not in quarantine"));
}

void ValueRules::Forget(const SiteId& site) {
  for (auto& refused : facts_.refused) refused.erase(site);
}

void ValueRules::Close(CloseRound& close) {
  std::vector<std::string> said;
  Weigh(close, said);
  Cap(close, said);
  Scale(close, said);
  if (!said.empty()) absl::StrAppend(&close.reason, "; ", absl::StrJoin(said, ", "));
  Remember(close);
  facts_.refused[close.fragment].clear();
  std::erase_if(unscaled_, [&](const Unscaled& one) {
    return one.outlier.fragment == close.fragment && one.outlier.version + one.rounds <= close.base + 1;
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
  const double cap = facts_.settings.values.weight_cap;
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

void ValueRules::Scale(CloseRound& close, std::vector<std::string>& said) {
  const core::ValuesConfig& values = facts_.settings.values;
  const FragmentId p = close.fragment;
  std::vector<double> norms;  // of this round
  for (const auto& [site, admitted] : facts_.state.contributions[p]) {
    if (admitted.norm > 0) norms.push_back(admitted.norm);
  }
  std::optional<double> usual = Usual(p);
  if (!usual && norms.size() >= 3) usual = UpperMedian(std::move(norms));
  if (!usual || (values.gate > 0 && !values.clip)) return;
  for (CloseRound::Contributor& contributor : close.contributors) {
    const core::Admitted& admitted = facts_.state.contributions[p].at(contributor.site);
    const double allowed = Allowed(contributor.site, p, admitted.steps, *usual), ratio = admitted.norm / allowed;
    if (values.gate > 0 && ratio > values.gate) {
      const bool broken = IsBroken(facts_.state, contributor.site, p);
      contributor.factor = static_cast<float>((broken ? 1 : values.gate) / ratio);
      said.push_back(absl::StrFormat("%s scaled by %.2g%s", contributor.site, contributor.factor,
                                     broken ? ", to the usual length" : ""));
    } else if (values.gate == 0 && ratio > kAlarmingRatio) {
      unscaled_.push_back({{.kind = core::Outlier::Kind::kWhole,
                            .site = contributor.site,
                            .fragment = p,
                            .version = close.base + 1,
                            .text = Describe(admitted.norm, allowed, *usual)},
                           std::max<Version>(core::kMergedKept, static_cast<Version>(std::min(ratio, kEver)))});
    }
  }
}

void ValueRules::Remember(const CloseRound& close) {
  for (const CloseRound::Contributor& contributor : close.contributors) {
    const core::Merged merged{.version = close.base + 1,
                              .admitted = facts_.state.contributions[close.fragment].at(contributor.site),
                              .factor = contributor.factor};
    if (merged.length() <= 0) continue;
    SiteRecord& record = facts_.state.sites[contributor.site];
    record.merged.resize(facts_.num_fragments());
    MergedOfSite& history = record.merged[close.fragment];
    history.push_back(merged);
    if (history.size() > core::kMergedKept) history.pop_front();
  }
}

// The site's newest contribution to a fragment was scaled: a broken one first, then the one that lost most.
void ValueRules::AddScaled(const SiteId& site, std::vector<core::Outlier>& outliers) const {
  std::optional<core::Outlier> worst;
  float factor = 1;
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    const MergedOfSite* const merged = HistoryOf(facts_.state.sites.at(site), p);
    if (merged == nullptr || merged->back().factor >= 1) continue;
    const core::Merged& last = merged->back();
    if (last.version + static_cast<Version>(core::kMergedKept) <= facts_.state.versions[p]) continue;
    const auto kind = IsBroken(facts_.state, site, p) ? core::Outlier::Kind::kBroken : core::Outlier::Kind::kScaled;
    if (worst && (kind < worst->kind || (kind == worst->kind && last.factor >= factor))) continue;
    const auto whole = std::find_if(merged->rbegin(), merged->rend(), [](const auto& one) { return one.factor >= 1; });
    factor = last.factor;
    worst = core::Outlier{.kind = kind,
                          .site = site,
                          .fragment = p,
                          .version = last.version,
                          .text = absl::StrFormat("norm %.2g was scaled by %.2g, number %d in a row",
                                                  last.admitted.norm, last.factor, whole - merged->rbegin())};
  }
  if (worst) outliers.push_back(*std::move(worst));
}

void ValueRules::AddApart(std::vector<core::Outlier>& outliers) const {
  const double gate = facts_.settings.values.gate;
  for (FragmentId p = 0; p < facts_.num_fragments() && gate > 0; ++p) {
    std::vector<std::pair<double, SiteId>> own;
    for (const auto& [site, record] : facts_.state.sites) {
      const MergedOfSite* const merged = IsIn(record) ? HistoryOf(record, p) : nullptr;
      if (merged != nullptr && merged->size() >= kFewMerged) own.emplace_back(*OwnLength(*merged), site);
    }
    if (own.size() != 2) continue;
    std::ranges::sort(own);
    const auto& [shorter, longer] = std::tie(own[0], own[1]);
    if (longer.first <= gate * shorter.first) continue;
    outliers.push_back({.kind = core::Outlier::Kind::kApart,
                        .site = longer.second,
                        .fragment = p,
                        .version = facts_.state.versions[p],
                        .text = absl::StrFormat("contributions of %s have the usual length %.2g, those of %s %.2g",
                                                longer.second, longer.first, shorter.second, shorter.first)});
    return;
  }
}

std::vector<core::Outlier> ValueRules::Outliers() const {
  std::vector<core::Outlier> outliers;
  for (const auto& [site, record] : facts_.state.sites) AddScaled(site, outliers);
  AddApart(outliers);
  for (const Unscaled& one : unscaled_) outliers.push_back(one.outlier);
  return outliers;
}

}  // namespace causeway::server
