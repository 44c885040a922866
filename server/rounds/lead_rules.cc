#include "server/rounds/lead_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {

using core::FragmentId;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;
using core::Version;

LeadRules::LeadRules(RunFacts& facts, SiteId seeder)
    : facts_(facts),
      seeder_(std::move(seeder)),
      heard_of_shard_(facts.settings.shard.count, false),
      seeded_shard_(facts.settings.shard.count, false) {
  heard_of_shard_[0] = true;
  // It is known of the others for certain only once sites have entered.
  if (!facts_.settings.shard.alone()) facts_.state.seeded = facts_.seeded_here && facts_.state.started;
}

const char* LeadRules::WhyAnew(const JoinRequest& request) const {
  if (!core::IsActive(facts_.state.sites.at(request.site).state)) return nullptr;
  if (request.held.empty()) return "came back before it had taken its place in the schedule";
  return request.from_checkpoint && !facts_.synchronous() ? "goes on from a checkpoint" : nullptr;
}

std::string LeadRules::WhyClosed() const {
  return facts_.state.stopped ? "the run is stopped by an operator; sites can join once it is resumed" : "";
}

void LeadRules::Begin(const JoinRequest& request) {
  SiteRecord& record = facts_.state.sites[request.site];
  record.session = request.session;
  ++record.stay;
  record.state = SiteState::kJoining;
  record.reason = "downloads the anchors";
  record.first_versions.clear();
  record.last_merged.resize(facts_.num_fragments(), -1);
}

bool LeadRules::IsVoid(const JoinRequest& request) const {
  const SiteRecord& record = facts_.state.sites.at(request.site);
  return record.starts_anew && !core::IsActive(record.state) && !request.held.empty();
}

void LeadRules::AskForSeed(const SiteId& joined, Actions& actions) {
  if (facts_.state.seeded) return;
  const SiteId before = seeder_;
  const auto joining = [](const auto& site) { return core::IsJoining(site.second.state); };
  const auto seeder = facts_.state.sites.find(seeder_);
  if (seeder == facts_.state.sites.end() || !joining(*seeder)) {
    const auto next = std::ranges::find_if(facts_.state.sites, joining);
    seeder_ = next == facts_.state.sites.end() ? "" : next->first;
  }
  if (!seeder_.empty() && (seeder_ != before || seeder_ == joined)) actions.push_back(RequestSeed{seeder_});
}

Actions LeadRules::Ready(const SiteReady& event) {
  if (!facts_.InSession(event.site, event.session) || !facts_.seeded_here || facts_.state.stopped) return {};
  SiteRecord& record = facts_.state.sites[event.site];
  if (!core::IsJoining(record.state)) return {};
  if (!IsReady(event.site)) ready_.push_back(event.site);
  record.reason = facts_.state.started ? "ready; waits for all shards" : "ready; waits for the start";
  return EnterReady();
}

bool LeadRules::IsReady(const SiteId& site) const { return std::ranges::count(ready_, site) > 0; }

// Waits until all shards of the run have reported, so that no site enters before a round that one has decided.
Actions LeadRules::EnterReady() {
  if (!facts_.state.seeded || !HeardOfAllShards()) return {};
  if (!facts_.state.started) return StartIfEnough();
  Actions actions;
  for (const SiteId& site : std::exchange(ready_, {})) {
    if (MayEnter(site)) {
      actions.push_back(EnterNow(site));
    } else {
      ready_.push_back(site);
    }
  }
  return actions;
}

// One that never stays long enough for a round would have the others wait for its lease again and again.
bool LeadRules::MayEnter(const SiteId& site) {
  const auto loop = facts_.crash_loops.find(site);
  if (loop == facts_.crash_loops.end() || facts_.now_ms >= loop->second.until_ms || facts_.NumActive() == 0)
    return true;
  facts_.state.sites[site].reason =
      absl::StrCat("ready; enters in ", (loop->second.until_ms - facts_.now_ms + 999) / 1000, " s: its last ",
                   loop->second.stays, " stays ended by its lease as soon as they had begun");
  return false;
}

Actions LeadRules::StartIfEnough() {
  Actions actions;
  if (static_cast<int>(ready_.size()) < facts_.settings.membership.min_sites) return actions;
  facts_.state.started = true;
  std::ranges::sort(ready_);
  for (const SiteId& site : ready_) EnterNow(site);
  // Each receives the names of all, so that they share the data from the first step.
  for (const SiteId& site : ready_) actions.push_back(EnterNow(site));
  ready_.clear();
  return actions;
}

Enter LeadRules::EnterNow(const SiteId& site) {
  const core::FragmentSchedule& schedule = facts_.schedule;
  const std::vector<Version>& versions = facts_.state.versions;
  SiteRecord& record = facts_.state.sites[site];
  Enter enter{.site = site, .entry = {}};
  enter.entry.step = EntryStep(schedule, versions);
  enter.entry.versions = versions;
  // With no other site in the run, the joiner has to fill every open round itself, even one that is behind the others.
  for (FragmentId p = 0; p < facts_.num_fragments() && facts_.synchronous() && facts_.NumActive() == 0; ++p) {
    enter.entry.step = std::min(enter.entry.step, schedule.SendStep(p, versions[p]) - 1);
  }
  for (FragmentId p = 0; p < facts_.num_fragments(); ++p) {
    Version first = versions[p];
    if (facts_.synchronous()) first = std::max(first, schedule.FirstBaseAfter(p, enter.entry.step));
    // An earlier stay of this site may have left its contribution in the open round; one per round is enough.
    if (facts_.state.contributions[p].contains(site)) first = std::max(first, versions[p] + 1);
    enter.entry.first_versions.push_back(first);
  }
  record.state = SiteState::kTraining;
  record.reason.clear();
  record.first_versions = enter.entry.first_versions;
  record.starts_anew = false;
  facts_.links[site].entry_step = enter.entry.step;
  facts_.links[site].entered_ms = facts_.now_ms;
  enter.entry.sites = facts_.ActiveSites();
  enter.entry.stay = record.stay;
  return enter;
}

std::vector<Dropped> LeadRules::Unwelcome() const {
  std::vector<Dropped> joining;
  for (const auto& [site, record] : facts_.state.sites) {
    if (!facts_.state.stopped || !core::IsJoining(record.state)) continue;
    joining.push_back({site, core::Ended::kDrained, "stopped by an operator"});
  }
  return joining;
}

Actions LeadRules::Seeded() {
  bool all = facts_.seeded_here;
  for (size_t i = 1; i < seeded_shard_.size(); ++i) all &= seeded_shard_[i];
  facts_.state.seeded |= all;
  return facts_.state.seeded ? EnterReady() : Actions();
}

void LeadRules::BeginAnotherModel() { seeded_shard_.assign(seeded_shard_.size(), false); }

// A restarted shard may have less than it reported before the crash, so its latest report counts.
Actions LeadRules::Report(const ShardReported& event) {
  const core::Shard& own = facts_.settings.shard;
  CHECK(event.shard > 0 && event.shard < own.count);
  heard_of_shard_[event.shard] = true;
  seeded_shard_[event.shard] = event.report.seeded;
  const std::vector<Version>& versions = event.report.versions;
  for (FragmentId p = 0; p < facts_.num_fragments() && p < std::ssize(versions); ++p) {
    if (own.OwnerOf(p) == event.shard) facts_.state.versions[p] = versions[p];
  }
  return Seeded();
}

bool LeadRules::IsStranded(const ShardReport& report) const {
  const auto stranded = facts_.state.sites.find(report.stranded);
  return stranded != facts_.state.sites.end() && core::IsActive(stranded->second.state) &&
         stranded->second.stay == report.stranded_stay;
}

bool LeadRules::HeardOfAllShards() const { return std::ranges::count(heard_of_shard_, false) == 0; }

std::string LeadRules::MissingShards() const {
  for (size_t i = 0; i < heard_of_shard_.size(); ++i) {
    if (!heard_of_shard_[i]) return absl::StrCat("waiting for shard ", i);
    if (i > 0 && !seeded_shard_[i]) return absl::StrCat("waiting for the initial parameters of shard ", i);
  }
  return "";
}

std::string LeadRules::WhyWaiting() const {
  const int min_sites = facts_.settings.membership.min_sites;
  if (std::ssize(ready_) >= min_sites) return MissingShards();
  return absl::StrCat(ready_.size(), " of ", min_sites, " sites are ready (min_sites)");
}

core::Membership LeadRules::membership() const {
  const core::RoundState& state = facts_.state;
  core::Membership membership{.started = state.started,
                              .finished = state.finished,
                              .paused = state.paused,
                              .stopped = state.stopped,
                              .seeder = state.seeded ? "" : seeder_,
                              .sites = {}};
  for (const auto& [site, record] : state.sites) {
    membership.sites[site] = {.session = record.session,
                              .stay = record.stay,
                              .state = record.state,
                              .ended = record.ended,
                              .reason = record.reason,
                              .first_versions = record.first_versions,
                              .releases = record.releases};
  }
  return membership;
}

}  // namespace causeway::server
