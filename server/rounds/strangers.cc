#include "server/rounds/strangers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/limits.h"

namespace causeway::server {

std::string_view DoubtName(Doubt doubt) {
  switch (doubt) {
    case Doubt::kUnknownLineage: return "unknown_lineage";
    case Doubt::kHistoryLost: return "history_lost";
    case Doubt::kTwoCoordinators: return "two_coordinators";
    case Doubt::kUnprovenClaim: return "unproven_claim";
  }
  return "unknown";
}

namespace {

constexpr int kPlaceShift = 24;  // an epoch's bits above: its term, and the place of the coordinator (store/schema.h)

DoubtFound Unproven(const std::string& claim) {
  return {Doubt::kUnprovenClaim,
          absl::StrCat(claim,
                       ", and shows no proof of that: it waits alone, and the run goes on. Stop that site and "
                       "start it afresh; if this state directory is a copy of before, start the coordinator on "
                       "the newer one")};
}

}  // namespace

std::optional<DoubtFound> FindDoubt(const CoordinatorIdentity& own, const Shown& shown, IsProven is_proven) {
  if (!shown.lineage.empty() && shown.lineage != own.lineage) {
    if (std::ranges::count(own.former_lineages, shown.lineage) > 0) return std::nullopt;
    const std::string claim = absl::StrCat("the site holds parameters of lineage ", shown.lineage,
                                           ", this state directory is of lineage ", own.lineage);
    if (!is_proven({.kind = Claim::Kind::kLineage})) return Unproven(claim);
    return DoubtFound{
        Doubt::kUnknownLineage,
        absl::StrCat(claim,
                     ": a wrong --state_dir, or a lost disk. Start the coordinator on the run's directory, or with "
                     "--rebuild_from_sites; to begin another run, start it with --new_run and the sites afresh")};
  }
  if (shown.epoch > own.epoch) {
    const std::string claim = absl::StrCat("the site has seen epoch ", shown.epoch, " of lineage ", own.lineage,
                                           ", this coordinator is at epoch ", own.epoch);
    if (!is_proven({.kind = Claim::Kind::kEpoch})) return Unproven(claim);
    return DoubtFound{.doubt = Doubt::kHistoryLost,
                      .text = absl::StrCat(claim,
                                           ": its state directory is a copy of before. Start the coordinator on the "
                                           "newer one, or this one with --new_lineage"),
                      .of_epoch = true,
                      .deposed = (shown.epoch >> kPlaceShift) > (own.epoch >> kPlaceShift)};
  }
  if (shown.epoch == own.epoch && shown.life != 0 && shown.life != own.life) {
    const std::string claim =
        absl::StrCat("the site has spoken with another coordinator of lineage ", own.lineage, " and epoch ", own.epoch);
    if (!is_proven({.kind = Claim::Kind::kEpoch})) return Unproven(claim);
    return DoubtFound{Doubt::kTwoCoordinators,
                      absl::StrCat(claim, ": two copies of one state directory are in use. Stop one of the two")};
  }
  return std::nullopt;
}

std::optional<DoubtFound> FindDoubt(const History& own, const History& shown, const core::Shard& shard,
                                    IsProven is_proven) {
  constexpr const char* kCure =
      ". Start the coordinator on the newer state, or this one with --rebuild_from_sites; with --new_lineage the sites "
      "go back to it";
  std::optional<DoubtFound> found;
  const auto look = [&](const Claim& claim, const std::string& text) {
    if (found && found->doubt == Doubt::kHistoryLost) return;
    if (is_proven(claim)) {
      found = DoubtFound{Doubt::kHistoryLost, absl::StrCat(text, kCure)};
    } else if (!found) {
      found = Unproven(text);
    }
  };
  for (size_t p = 0; p < own.versions.size(); ++p) {
    const auto fragment = static_cast<core::FragmentId>(p);
    if (!shard.Owns(fragment)) continue;
    if (p < shown.versions.size() && shown.versions[p] > own.versions[p]) {
      look({Claim::Kind::kVersion, fragment, shown.versions[p]},
           absl::StrCat("the site holds version ", shown.versions[p], " of fragment ", p,
                        ", the coordinator only version ", own.versions[p]));
    }
    const core::Version admitted = p < own.admitted.size() ? own.admitted[p] : -1;
    if (p < shown.admitted.size() && shown.admitted[p] > admitted) {
      look({Claim::Kind::kAdmission, fragment, shown.admitted[p]},
           absl::StrCat("the site knows that its contribution to fragment ", p, " base ", shown.admitted[p],
                        " was admitted, the coordinator ",
                        admitted < 0 ? "knows of none" : absl::StrCat("knows of none after base ", admitted)));
    }
  }
  return found;
}

bool Strangers::Note(const core::SiteId& site, const DoubtFound& found, int64_t now_ms) {
  std::erase_if(strangers_, [now_ms](const auto& stranger) { return !IsPresent(stranger.second, now_ms); });
  const auto before = strangers_.find(site);
  if (before == strangers_.end() && std::ssize(strangers_) >= core::kMaxSites) return false;  // one more of many
  const bool news = before == strangers_.end() || before->second.found.doubt != found.doubt;
  strangers_[site] = {found, now_ms};
  return news;
}

bool Strangers::MissesAnEnd(int sites) const {
  const auto lost = [](const auto& one) { return one.second.found.doubt == Doubt::kHistoryLost; };
  return std::ranges::count_if(strangers_, lost) >= sites &&
         std::ranges::none_of(strangers_, [&](const auto& one) { return lost(one) && one.second.found.of_epoch; });
}

std::string Strangers::WhyDeposed() const {
  for (const auto& [site, seen] : strangers_) {
    if (seen.found.deposed) return absl::StrCat("a standby leads this run: site ", site, ": ", seen.found.text);
  }
  return "";
}

std::vector<Strangers::Stranger> Strangers::Present(int64_t now_ms) const {
  std::vector<Stranger> present;
  for (const auto& [site, seen] : strangers_) {
    if (IsPresent(seen, now_ms)) present.push_back({site, seen.found});
  }
  return present;
}

}  // namespace causeway::server
