#include "server/rebuild/rebuild_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"

namespace causeway::server {
namespace {

using core::FragmentId;
using core::HeldVersion;
using core::SiteId;

constexpr int kAgree = 2;  // sites, for anything to be taken

// Those who hold a version.
struct Holders {
  std::vector<SiteId> sites;
  bool own = false;  // the coordinator does

  size_t size() const { return sites.size() + (own ? 1 : 0); }
  std::string Text() const {
    return absl::StrCat(own ? "the coordinator" : "", own && !sites.empty() ? ", " : "", absl::StrJoin(sites, ", "));
  }
};

std::string TextOf(const HeldVersion& held) {
  return absl::StrCat("version ", held.version, " (digests ", core::DigestText(held.anchor_digest), " and ",
                      core::DigestText(held.momentum_digest), ")");
}

// Sites that agree among themselves may be a version behind the newest, as an update reaches some first. If others
// agree on one that is further behind, or on other values of it, that is another history, unless it is held by fewer.
bool Contradicts(const HeldVersion& newest, size_t holders, const HeldVersion& older, size_t of_older) {
  if (older.version == newest.version) return true;
  return older.version < newest.version - 1 && of_older >= holders;
}

}  // namespace

void RebuildRules::Show(const SiteId& site, Holdings holdings, int64_t now_ms) {
  if (came_.empty()) first_ms_ = now_ms;
  if (came_.insert(site).second) newest_ms_ = now_ms;
  shown_[site] = std::move(holdings);
}

void RebuildRules::Distrust(const SiteId& site) {
  distrusted_.insert(site);
  shown_.erase(site);
}

bool RebuildRules::Holds(const SiteId& site, FragmentId fragment, const HeldVersion& held) const {
  const auto shown = shown_.find(site);
  if (shown == shown_.end()) return false;
  const auto found = shown->second.fragments.find(fragment);
  return found != shown->second.fragments.end() && found->second == held;
}

// The run shown by most sites, or by the accepted one. Two that agree can only be outvoted where no other two do.
absl::StatusOr<RebuildChoice> RebuildRules::ChooseRun() const {
  if (own_) return RebuildChoice{own_->held.lineage, own_->held.model, {}, {}};
  std::map<std::pair<std::string, std::string>, int> runs;
  for (const auto& [site, holdings] : shown_) {
    runs[{holdings.lineage, holdings.model}] += site == accept_ ? static_cast<int>(shown_.size()) : 1;
  }
  const auto most = std::ranges::max_element(runs, {}, [](const auto& run) { return run.second; });
  const auto rivals = std::ranges::count_if(
      runs, [&](const auto& run) { return run.second == most->second || (accept_.empty() && run.second >= kAgree); });
  if (rivals > 1) {
    return absl::UnavailableError(
        "several sites show one lineage or model, and several another; --accept=SITE takes a site's");
  }
  return RebuildChoice{.lineage = most->first.first, .model = most->first.second, .fragments = {}, .dissent = {}};
}

// Digests do not cover them: a site that tells of more cannot end the run early.
int64_t RebuildRules::LeastTokens(const std::vector<SiteId>& sites, FragmentId fragment) const {
  int64_t least = core::kMostRunTokens;
  for (const SiteId& site : sites) {
    const std::map<FragmentId, int64_t>& shown = shown_.at(site).run_tokens;
    const auto tokens = shown.find(fragment);
    least = std::min(least, tokens == shown.end() ? 0 : tokens->second);
  }
  return std::max<int64_t>(0, least);
}

absl::StatusOr<RebuildChoice::Fragment> RebuildRules::ChooseFragment(FragmentId fragment,
                                                                     const RebuildChoice& run) const {
  std::map<HeldVersion, Holders> holders;
  std::map<HeldVersion, size_t> remembered;
  for (const auto& [site, holdings] : shown_) {
    const auto held = holdings.fragments.find(fragment), before = holdings.before.find(fragment);
    if (!Counts(holdings, run) || held == holdings.fragments.end()) continue;
    holders[held->second].sites.push_back(site);
    const bool remembers = before != holdings.before.end() && before->second.version == held->second.version - 1;
    if (remembers) ++remembered[before->second];
  }
  if (own_) {
    const HeldVersion& own = own_->held.fragments.at(fragment);
    const bool newest = holders.empty() || holders.rbegin()->first.version <= own.version;
    if (newest && accept_.empty()) return RebuildChoice::Fragment{own, {}};
    holders[own].own = true;
  }
  const auto agree = [&](const auto& one) { return one.second.size() + remembered[one.first] >= size_t{kAgree}; };
  for (auto newest = holders.rbegin(); newest != holders.rend(); ++newest) {
    const bool accepted = std::ranges::count(newest->second.sites, accept_) > 0;
    if (!accepted && (!accept_.empty() || !agree(*newest))) continue;
    // A round may be lost that some have taken; what fewer hold than an older one may be made up.
    const bool fewer = std::any_of(std::next(newest), holders.rend(), [&](const auto& older) {
      return agree(older) && older.first.version < newest->first.version &&
             older.second.sites.size() > newest->second.sites.size();
    });
    if (fewer && !accepted) continue;
    const auto rival = std::find_if(std::next(newest), holders.rend(), [&](const auto& older) {
      return agree(older) && !older.second.own &&  // its own is before all others
             Contradicts(newest->first, newest->second.size(), older.first, older.second.size());
    });
    if (accepted || rival == holders.rend()) {
      if (newest->second.own) return RebuildChoice::Fragment{newest->first, {}};
      return RebuildChoice::Fragment{newest->first, newest->second.sites, LeastTokens(newest->second.sites, fragment)};
    }
    return absl::UnavailableError(absl::StrCat("fragment ", fragment, ": ", newest->second.Text(), " hold ",
                                               TextOf(newest->first), ", ", rival->second.Text(), " ",
                                               TextOf(rival->first), "; --accept=SITE takes a site's"));
  }
  const std::string held = absl::StrJoin(holders, "; ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, one.second.Text(), ": ", TextOf(one.first));
  });
  return absl::UnavailableError(
      absl::StrCat("fragment ", fragment, ": no two sites hold the same version with equal digests (",
                   held.empty() ? "none" : held, "); --accept=SITE takes what one site holds"));
}

absl::StatusOr<RebuildChoice> RebuildRules::Choose(int64_t now_ms) const {
  if (!accept_.empty() && !shown_.contains(accept_)) {
    return absl::UnavailableError(absl::StrCat("site ", accept_, " (--accept) has not shown what it holds"));
  }
  if (const size_t least = own_ ? 1 : kAgree; accept_.empty() && shown_.size() < least) {
    return absl::UnavailableError(
        absl::StrCat(shown_.size(), " of at least ", least, " sites have shown what they hold"));
  }
  if (!IsSettled(now_ms)) {
    return absl::UnavailableError(absl::StrCat(shown_.size(), " sites have shown what they hold; waits for others"));
  }
  ASSIGN_OR_RETURN(RebuildChoice choice, ChooseRun());
  for (FragmentId p = 0; p < num_fragments_; ++p) {
    if (!shard_.Owns(p)) continue;
    ASSIGN_OR_RETURN(choice.fragments[p], ChooseFragment(p, choice));
  }
  choice.settings = ChooseSettings(choice);
  NoteDissent(choice);
  return choice;
}

core::SettingsChain RebuildRules::ChooseSettings(const RebuildChoice& run) const {
  if (!accept_.empty()) return shown_.at(accept_).settings;
  std::vector<const core::SettingsChain*> chains;
  if (own_) chains.push_back(&own_->held.settings);
  for (const auto& [site, holdings] : shown_) {
    if (Counts(holdings, run)) chains.push_back(&holdings.settings);
  }
  // The coordinator's own are on its disk; of others' each revision needs two.
  core::SettingsChain chosen = own_ ? own_->held.settings : core::SettingsChain();
  for (const core::SettingsChain* const chain : chains) {
    for (size_t i = 0; i < chain->revisions.size(); ++i) {
      const core::SettingsRevision& one = chain->revisions[i];
      const bool newer = chosen.revisions.empty() || one.number > chosen.revisions.back().number;
      const auto agree = std::ranges::count_if(
          chains, [&](const core::SettingsChain* other) { return other->DigestAt(one.number) == one.digest; });
      if (!newer || agree < kAgree) continue;
      chosen = *chain;
      chosen.revisions.resize(i + 1);
    }
  }
  return chosen;
}

bool RebuildRules::IsSettled(int64_t now_ms) const {
  if (shown_.empty()) return false;
  const auto shown = [this](const SiteId& site) { return shown_.contains(site) || Distrusts(site); };
  const bool all = own_ && std::ranges::all_of(own_->sites, shown);
  return all || now_ms - newest_ms_ >= kSettleMs || now_ms - first_ms_ >= kMostSettleMs;
}

void RebuildRules::NoteDissent(RebuildChoice& choice) const {
  for (const auto& [site, holdings] : shown_) {
    if (!Counts(holdings, choice)) {
      choice.dissent.push_back(absl::StrCat("site ", site, " is of another ",
                                            holdings.lineage == choice.lineage ? "model" : "lineage",
                                            " than the others: nothing of it was taken"));
      continue;
    }
    for (const auto& [fragment, chosen] : choice.fragments) {
      const auto held = holdings.fragments.find(fragment);
      if (held == holdings.fragments.end() || held->second == chosen.held) continue;
      const bool other_values = held->second.version == chosen.held.version;
      if (!other_values && held->second.version < chosen.held.version) continue;  // it is behind, as sites may be
      const bool own = chosen.witnesses.empty();
      choice.dissent.push_back(
          absl::StrCat("site ", site, " holds ", TextOf(held->second), " of fragment ", fragment,
                       ", not taken: ", own ? "the coordinator" : absl::StrJoin(chosen.witnesses, " and "),
                       own ? " holds " : " hold ", TextOf(chosen.held)));
    }
  }
}

}  // namespace causeway::server
