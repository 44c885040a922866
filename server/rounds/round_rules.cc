#include "server/rounds/round_rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::server {

using core::FragmentId;
using core::SessionId;
using core::SiteId;
using core::SiteRecord;
using core::Version;

RoundRules::RoundRules(RunFacts& facts, Pace& pace)
    : facts_(facts), pace_(pace), open_(facts.num_fragments()), closed_ms_(facts.num_fragments()) {
  for (FragmentId p = 0; p < facts_.num_fragments() && !facts_.synchronous(); ++p) NoteQuorum(p);
}

absl::Status RoundRules::CheckRepeat(const SiteId& site, FragmentId fragment, Version base) const {
  const auto waiting = facts_.state.contributions[fragment].find(site);
  if (waiting != facts_.state.contributions[fragment].end() && waiting->second.base == base) {
    return absl::AlreadyExistsError("admitted already");
  }
  const auto record = facts_.state.sites.find(site);
  if (record != facts_.state.sites.end() && base >= 0 && record->second.last_merged[fragment] == base) {
    return absl::AlreadyExistsError("merged already");
  }
  return absl::OkStatus();
}

absl::Status RoundRules::Check(const SiteId& site, const SessionId& session, FragmentId fragment, Version base) const {
  if (fragment < 0 || fragment >= facts_.num_fragments()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a fragment from 0 to ", facts_.num_fragments() - 1, ", got ", fragment));
  }
  if (!facts_.InSession(site, session)) {
    // A contribution that a site repeats after it was dropped may have been admitted before. If it were refused, the
    // site would contribute that work again.
    RETURN_IF_ERROR(CheckRepeat(site, fragment, base));
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " is not in the run with this session"));
  }
  const SiteRecord& record = facts_.state.sites.at(site);
  if (!core::IsActive(record.state)) {
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " has not entered yet"));
  }
  const Version open = facts_.state.versions[fragment];
  if (base < record.first_versions[fragment]) {
    return absl::FailedPreconditionError(absl::StrCat("the site's first contribution to fragment ", fragment,
                                                      " is of base version ", record.first_versions[fragment],
                                                      ", this one is of ", base));
  }
  if (record.last_merged[fragment] >= base) return absl::AlreadyExistsError("merged already");
  const auto& contributors = facts_.state.contributions[fragment];
  if (const auto earlier = contributors.find(site); earlier != contributors.end()) {
    if (earlier->second.base == base) return absl::AlreadyExistsError("admitted already");
    return absl::FailedPreconditionError(absl::StrCat("one unresolved contribution for each site and fragment: base ",
                                                      earlier->second.base, " waits to be merged"));
  }
  if (facts_.synchronous() ? base != open : base > open) {
    return absl::FailedPreconditionError(absl::StrCat("the open round of fragment ", fragment, " is of base version ",
                                                      open, ", the contribution is of ", base));
  }
  if (open - base > facts_.settings.membership.max_staleness) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the contribution to fragment ", fragment, " is of base version ", base, ", ", open - base, " behind version ",
        open, "; at most ", facts_.settings.membership.max_staleness, " is allowed (max_staleness)"));
  }
  return absl::OkStatus();
}

void RoundRules::Admit(const ContributionAdmitted& event) {
  auto& contributors = facts_.state.contributions[event.fragment];
  CHECK(event.contribution.base <= facts_.state.versions[event.fragment] && !contributors.contains(event.site));
  if (contributors.empty()) open_[event.fragment].first_ms = facts_.now_ms;
  contributors[event.site] = event.contribution;
  pace_.Transferred(event.transfer_ms);
}

std::vector<core::Version> RoundRules::LastAdmitted(const SiteId& site) const {
  const auto record = facts_.state.sites.find(site);
  if (record == facts_.state.sites.end()) return std::vector<core::Version>(facts_.num_fragments(), -1);
  std::vector<core::Version> bases = record->second.last_merged;
  bases.resize(facts_.num_fragments(), -1);
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    const auto waiting = facts_.state.contributions[p].find(site);
    if (waiting != facts_.state.contributions[p].end()) bases[p] = waiting->second.base;
  }
  return bases;
}

bool RoundRules::Misses(FragmentId fragment, const SiteId& site, const SiteRecord& record) const {
  return Counts(record) && record.first_versions[fragment] <= facts_.state.versions[fragment] &&
         !facts_.state.contributions[fragment].contains(site) && !facts_.refused[fragment].contains(site) &&
         (facts_.synchronous() || !facts_.IsCompleting(site));
}

std::vector<SiteId> RoundRules::MissingFrom(FragmentId fragment) const {
  std::vector<SiteId> missing;
  for (const auto& [site, record] : facts_.state.sites) {
    if (Misses(fragment, site, record)) missing.push_back(site);
  }
  return missing;
}

bool RoundRules::AnyMissingFrom(FragmentId fragment) const {
  return std::any_of(facts_.state.sites.begin(), facts_.state.sites.end(),
                     [&](const auto& site) { return Misses(fragment, site.first, site.second); });
}

int RoundRules::Quorum(FragmentId fragment) const {
  if (!facts_.Ending(fragment)) return facts_.settings.membership.min_quorum;
  const auto& contributors = facts_.state.contributions[fragment];
  int could = static_cast<int>(contributors.size());
  for (const auto& [site, record] : facts_.state.sites) {
    could += Counts(record) && !facts_.IsCompleting(site) && !contributors.contains(site);
  }
  return std::min(facts_.settings.membership.min_quorum, std::max(1, could));
}

// min_quorum 1 is no bound at all: the contribution left by the last site is merged without waiting for another.
bool RoundRules::EnoughActive(FragmentId fragment) const {
  return facts_.settings.membership.min_quorum <= std::max(1, facts_.NumActive()) || facts_.Ending(fragment);
}

bool RoundRules::HasQuorum(FragmentId fragment) const {
  return static_cast<int>(facts_.state.contributions[fragment].size()) >= Quorum(fragment) && EnoughActive(fragment);
}

bool RoundRules::InGrace(FragmentId fragment) const {
  const OpenRound& open = open_[fragment];
  return open.quorum_ms && facts_.now_ms < *open.quorum_ms + open.grace_ms && AnyMissingFrom(fragment);
}

// With no training site left there is no pace that the rounds could outrun.
bool RoundRules::FarEnough(FragmentId fragment) const {
  if (!last_closed_ms_) return true;
  const bool trains = std::any_of(facts_.state.sites.begin(), facts_.state.sites.end(), [this](const auto& site) {
    return core::IsActive(site.second.state) && !facts_.IsCompleting(site.first);
  });
  const double distance_ms = trains ? pace_.DistanceMs(facts_.settings.sync.sync_every) : 0;
  const auto& same = closed_ms_[fragment];
  return facts_.now_ms - *last_closed_ms_ >= distance_ms / facts_.num_fragments() &&
         (!same || facts_.now_ms - *same >= distance_ms);
}

bool RoundRules::MayClose(FragmentId fragment) const {
  if (facts_.held || facts_.AwaitsUnseen() || facts_.state.contributions[fragment].empty()) return false;
  if (facts_.synchronous()) return !AnyMissingFrom(fragment) && EnoughActive(fragment);
  return HasQuorum(fragment) && !InGrace(fragment) && FarEnough(fragment);
}

void RoundRules::NoteQuorum(FragmentId fragment) {
  OpenRound& open = open_[fragment];
  if (facts_.state.contributions[fragment].empty()) return;
  if (facts_.held || !EnoughActive(fragment)) open.first_ms.reset();
  if (!HasQuorum(fragment)) {
    open.quorum_ms.reset();
  } else if (!open.quorum_ms) {
    open.quorum_ms = facts_.now_ms;
    if (open.first_ms) pace_.ReachedQuorum(facts_.now_ms - *open.first_ms);
    open.grace_ms = pace_.GraceMs(facts_.settings.membership.grace_ms, facts_.settings.sync.fragment_sync_delay);
  }
}

std::optional<FragmentId> RoundRules::Due() {
  std::optional<FragmentId> next;
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    if (!facts_.synchronous()) NoteQuorum(p);
    if (MayClose(p) && (!next || open_[p].quorum_ms < open_[*next].quorum_ms)) next = p;
  }
  return next;
}

CloseRound RoundRules::Contributors(FragmentId fragment) const {
  CloseRound close{.fragment = fragment,
                   .base = facts_.state.versions[fragment],
                   .contributors = {},
                   .sites = facts_.ActiveSites(),
                   .reason = "",
                   .run_tokens = facts_.state.tokens[fragment]};
  for (const auto& [site, admitted] : facts_.state.contributions[fragment]) {
    close.run_tokens += std::min(admitted.tokens, core::kMostRunTokens - close.run_tokens);
    close.contributors.push_back({.site = site, .base = admitted.base});
  }
  return close;
}

void RoundRules::Close(const CloseRound& close) {
  for (const CloseRound::Contributor& contributor : close.contributors) {
    facts_.state.sites[contributor.site].last_merged[close.fragment] = contributor.base;
  }
  facts_.state.tokens[close.fragment] = close.run_tokens;
  Next(close.fragment);
}

void RoundRules::Next(FragmentId fragment) {
  facts_.state.contributions[fragment].clear();
  open_[fragment] = {};
  ++facts_.state.versions[fragment];
  if (closed_ms_[fragment]) round_ms_.Add(static_cast<double>(facts_.now_ms - *closed_ms_[fragment]));
  closed_ms_[fragment] = facts_.now_ms;
  last_closed_ms_ = facts_.now_ms;
}

absl::Status RoundRules::RollBack(const RollBackRun& event, Actions& actions) {
  const Version version = event.version;
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    if (version <= facts_.state.versions[p]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("fragment ", p, " is at version ", facts_.state.versions[p], ", before version ", version));
  }
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    if (!event.run_tokens.empty()) facts_.state.tokens[p] = event.run_tokens[p];
    actions.push_back(CloseRound{.fragment = p,
                                 .base = facts_.state.versions[p],
                                 .contributors = {},
                                 .sites = {},
                                 .reason = absl::StrCat("rolled back to version ", version),
                                 .run_tokens = facts_.state.tokens[p],
                                 .rolled_back_to = version});
    Next(p);
  }
  return absl::OkStatus();
}

std::optional<FragmentId> RoundRules::Stranded() const {
  if (!facts_.synchronous() || facts_.NumActive() == 0) return std::nullopt;
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    if (facts_.settings.shard.Owns(p) && facts_.state.contributions[p].empty() && !AnyMissingFrom(p)) return p;
  }
  return std::nullopt;
}

int64_t RoundRules::StandsMs() const {
  constexpr int64_t kLeastMs = 10'000, kUnknownMs = 30'000;
  const std::optional<double> usual_ms = round_ms_.value();
  return usual_ms ? std::max(kLeastMs, static_cast<int64_t>(3 * *usual_ms)) : kUnknownMs;
}

void RoundRules::AddAwaited(std::vector<core::Outlier>& outliers) const {
  std::map<SiteId, int64_t> since;  // each site's longest
  for (FragmentId p = 0; p < facts_.num_fragments() && facts_.synchronous() && !facts_.held; ++p) {
    const int64_t since_ms = facts_.now_ms - open_[p].first_ms.value_or(facts_.now_ms);
    if (since_ms < StandsMs() || !EnoughActive(p)) continue;
    for (const SiteId& site : MissingFrom(p)) {
      if (since_ms <= std::exchange(since[site], std::max(since[site], since_ms))) continue;
      std::erase_if(outliers,
                    [&](const auto& one) { return one.kind == core::Outlier::Kind::kAwaited && one.site == site; });
      outliers.push_back(
          {.kind = core::Outlier::Kind::kAwaited,
           .site = site,
           .fragment = p,
           .version = facts_.state.versions[p] + 1,
           .text = absl::StrFormat(
               "the others have waited %d s for %s's contribution to fragment %d%s", since_ms / 1000, site, p,
               round_ms_.value() ? absl::StrFormat(", where a round takes %.1f s", *round_ms_.value() / 1000) : "")});
    }
  }
}

RoundPhase RoundRules::Phase(FragmentId fragment) const {
  if (facts_.state.contributions[fragment].empty()) return RoundPhase::kIdle;
  return !facts_.synchronous() && HasQuorum(fragment) ? RoundPhase::kGrace : RoundPhase::kOpen;
}

}  // namespace causeway::server
