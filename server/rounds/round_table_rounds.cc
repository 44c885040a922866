// When rounds close: contributions, quorum, grace, distance.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/rounds/round_table.h"

namespace causeway::server {

using core::FragmentId;
using core::SessionId;
using core::SiteId;
using core::SiteRecord;
using core::Version;

absl::Status RoundTable::CheckRepeat(const SiteId& site, FragmentId fragment, Version base) const {
  const auto waiting = state_.contributions[fragment].find(site);
  if (waiting != state_.contributions[fragment].end() && waiting->second.base == base) {
    return absl::AlreadyExistsError("admitted already");
  }
  const auto record = state_.sites.find(site);
  if (record != state_.sites.end() && base >= 0 && record->second.last_merged[fragment] == base) {
    return absl::AlreadyExistsError("merged already");
  }
  return absl::OkStatus();
}

absl::Status RoundTable::CheckContribution(const SiteId& site, const SessionId& session, FragmentId fragment,
                                           const core::Admitted& contribution) const {
  if (fragment < 0 || fragment >= num_fragments()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a fragment from 0 to ", num_fragments() - 1, ", got ", fragment));
  }
  if (!InSession(site, session)) {
    // A contribution that a site repeats after it was dropped may have been admitted before. If it were refused, the
    // site would contribute that work again.
    RETURN_IF_ERROR(CheckRepeat(site, fragment, contribution.base));
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " is not in the run with this session"));
  }
  const SiteRecord& record = state_.sites.at(site);
  if (!core::IsActive(record.state)) {
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " has not entered yet"));
  }
  const Version open = state_.versions[fragment];
  const Version base = contribution.base;
  if (base < record.first_versions[fragment]) {
    return absl::FailedPreconditionError(absl::StrCat("the site's first contribution to fragment ", fragment,
                                                      " is of base version ", record.first_versions[fragment],
                                                      ", this one is of ", base));
  }
  if (record.last_merged[fragment] >= base) return absl::AlreadyExistsError("merged already");
  const auto& contributors = state_.contributions[fragment];
  if (const auto earlier = contributors.find(site); earlier != contributors.end()) {
    if (earlier->second.base == base) return absl::AlreadyExistsError("admitted already");
    return absl::FailedPreconditionError(absl::StrCat("one unresolved contribution for each site and fragment: base ",
                                                      earlier->second.base, " waits to be merged"));
  }
  if (synchronous() ? base != open : base > open) {
    return absl::FailedPreconditionError(absl::StrCat("the open round of fragment ", fragment, " is of base version ",
                                                      open, ", the contribution is of ", base));
  }
  if (open - base > rules_.membership.max_staleness) {
    return absl::FailedPreconditionError(absl::StrCat("the contribution to fragment ", fragment, " is of base version ",
                                                      base, ", ", open - base, " behind version ", open, "; at most ",
                                                      rules_.membership.max_staleness, " is allowed (max_staleness)"));
  }
  RETURN_IF_ERROR(CheckQuarantine(site, fragment));
  return CheckCounts(site, contribution);
}

Actions RoundTable::Admit(const SiteId& site, FragmentId fragment, const core::Admitted& contribution,
                          int64_t transfer_ms, int64_t now_ms, int64_t parameters) {
  SetNow(now_ms);
  NoteOutlier(site, fragment, contribution, parameters);
  state_.sites[site].refusals = 0;
  auto& contributors = state_.contributions[fragment];
  CHECK(contribution.base <= state_.versions[fragment] && !contributors.contains(site));
  if (contributors.empty()) open_[fragment].first_ms = now_ms_;
  contributors[site] = contribution;
  pace_.Transferred(transfer_ms);
  Actions actions;
  CloseRounds(actions);
  return actions;
}

std::vector<core::Version> RoundTable::LastAdmitted(const SiteId& site) const {
  const auto record = state_.sites.find(site);
  if (record == state_.sites.end()) return std::vector<core::Version>(num_fragments(), -1);
  std::vector<core::Version> bases = record->second.last_merged;
  bases.resize(num_fragments(), -1);
  for (FragmentId p = 0; p < num_fragments(); ++p) {
    const auto waiting = state_.contributions[p].find(site);
    if (waiting != state_.contributions[p].end()) bases[p] = waiting->second.base;
  }
  return bases;
}

bool RoundTable::Misses(FragmentId fragment, const SiteId& site, const SiteRecord& record) const {
  return Counts(record) && record.first_versions[fragment] <= state_.versions[fragment] &&
         !state_.contributions[fragment].contains(site) && !open_[fragment].refused.contains(site) &&
         (synchronous() || !IsCompleting(site));
}

std::vector<SiteId> RoundTable::MissingFrom(FragmentId fragment) const {
  std::vector<SiteId> missing;
  for (const auto& [site, record] : state_.sites) {
    if (Misses(fragment, site, record)) missing.push_back(site);
  }
  return missing;
}

bool RoundTable::AnyMissingFrom(FragmentId fragment) const {
  return std::any_of(state_.sites.begin(), state_.sites.end(),
                     [&](const auto& site) { return Misses(fragment, site.first, site.second); });
}

// Whether the round is among the last of the run, or of a site that waits for it in order to leave: fewer than
// min_quorum sites then close it, since no further site may ever come. A draining site counts, too: in synchronous mode
// it may have to wait for the update before it can end.
bool RoundTable::Ending(FragmentId fragment) const {
  if (state_.finished || state_.stopped) return true;
  const auto& contributors = state_.contributions[fragment];
  return std::any_of(contributors.begin(), contributors.end(), [this](const auto& contributor) {
    return IsCompleting(contributor.first) || state_.sites.at(contributor.first).state == core::SiteState::kDraining;
  });
}

// How many contributions the open round needs (quorum mode).
int RoundTable::Quorum(FragmentId fragment) const {
  if (!Ending(fragment)) return rules_.membership.min_quorum;
  const auto& contributors = state_.contributions[fragment];
  int could = static_cast<int>(contributors.size());
  for (const auto& [site, record] : state_.sites) {
    could += Counts(record) && !IsCompleting(site) && !contributors.contains(site);
  }
  return std::min(rules_.membership.min_quorum, std::max(1, could));
}

// min_quorum 1 is no bound at all: the contribution left by the last site is merged without waiting for another.
bool RoundTable::EnoughActive(FragmentId fragment) const {
  return rules_.membership.min_quorum <= std::max(1, NumActive()) || Ending(fragment);
}

bool RoundTable::HasQuorum(FragmentId fragment) const {
  return static_cast<int>(state_.contributions[fragment].size()) >= Quorum(fragment) && EnoughActive(fragment);
}

bool RoundTable::InGrace(FragmentId fragment) const {
  const OpenRound& open = open_[fragment];
  return open.quorum_ms && now_ms_ < *open.quorum_ms + open.grace_ms && AnyMissingFrom(fragment);
}

// With no training site left there is no pace that the rounds could outrun.
bool RoundTable::FarEnough(FragmentId fragment) const {
  if (!last_closed_ms_) return true;
  const bool trains = std::any_of(state_.sites.begin(), state_.sites.end(), [this](const auto& site) {
    return core::IsActive(site.second.state) && !IsCompleting(site.first);
  });
  const double distance_ms = trains ? pace_.DistanceMs(rules_.sync.sync_every) : 0;
  const auto& same = closed_ms_[fragment];
  return now_ms_ - *last_closed_ms_ >= distance_ms / num_fragments() && (!same || now_ms_ - *same >= distance_ms);
}

bool RoundTable::MayClose(FragmentId fragment) const {
  if (held() || state_.contributions[fragment].empty()) return false;
  if (synchronous()) return !AnyMissingFrom(fragment) && EnoughActive(fragment);
  return HasQuorum(fragment) && !InGrace(fragment) && FarEnough(fragment);
}

void RoundTable::NoteQuorum(FragmentId fragment) {
  OpenRound& open = open_[fragment];
  if (state_.contributions[fragment].empty()) return;
  if (held() || !EnoughActive(fragment)) open.first_ms.reset();
  if (!HasQuorum(fragment)) {
    open.quorum_ms.reset();
  } else if (!open.quorum_ms) {
    open.quorum_ms = now_ms_;
    if (open.first_ms) pace_.ReachedQuorum(now_ms_ - *open.first_ms);
    open.grace_ms = pace_.GraceMs(rules_.membership.grace_ms, rules_.sync.fragment_sync_delay);
  }
}

// The round that reached its quorum first closes first: the others may have to keep a distance from it.
void RoundTable::CloseRounds(Actions& actions) {
  while (true) {
    std::optional<FragmentId> next;
    for (FragmentId p = 0; p < num_fragments(); ++p) {
      if (!synchronous()) NoteQuorum(p);
      if (MayClose(p) && (!next || open_[p].quorum_ms < open_[*next].quorum_ms)) next = p;
    }
    if (!next) return;
    actions.push_back(Close(*next));
  }
}

CloseRound RoundTable::Close(FragmentId fragment) {
  auto& contributors = state_.contributions[fragment];
  CloseRound close{.fragment = fragment,
                   .base = state_.versions[fragment],
                   .contributors = {},
                   .sites = ActiveSites(),
                   .reason = WhyItCloses(fragment)};
  for (const auto& [site, admitted] : contributors) close.contributors.push_back({.site = site, .base = admitted.base});
  Weigh(fragment, close);
  for (const auto& [site, admitted] : contributors) state_.sites[site].last_merged[fragment] = admitted.base;
  contributors.clear();
  open_[fragment] = {};
  ++state_.versions[fragment];
  closed_ms_[fragment] = now_ms_;
  last_closed_ms_ = now_ms_;
  return close;
}

std::string RoundTable::WhyItCloses(FragmentId fragment) const {
  if (AnyMissingFrom(fragment)) {
    const int64_t grace_ms = open_[fragment].grace_ms;
    const std::string grace = grace_ms > 0 ? absl::StrCat(", and the grace of ", grace_ms, " ms is over") : "";
    return absl::StrCat("quorum of ", Quorum(fragment), grace);
  }
  int contributed = 0;  // of those that are still in the run
  for (const auto& [site, record] : state_.sites) {
    contributed += Counts(record) && state_.contributions[fragment].contains(site);
  }
  if (contributed == 0) return "no site is left that could contribute";
  if (contributed < NumActive()) return "no other site is left that could contribute";
  return contributed == 1 ? "the only active site has contributed"
                          : absl::StrCat("all ", contributed, " active sites have contributed");
}

}  // namespace causeway::server
