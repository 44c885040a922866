#include "server/status/alarms.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace causeway::server {
namespace {

// The site for which the others wait, in synchronous mode: a round closes with the last contribution, and where that is
// nearly always the same site's, it sets the pace of all.
struct Straggler {
  core::SiteId site;
  int last = 0;  // of the rounds looked at, those that it was the last in
  int rounds = 0;
  double share = 0;  // of the time, in which the others' contributions were waiting for it
};

constexpr int kStraggleRounds = 16;  // that are looked at
constexpr int64_t kLeastStraggleMs = 10'000;
constexpr double kStraggleLast = 0.8;    // of the rounds
constexpr double kStraggleShare = 0.25;  // of the time

// The last contribution of a round, and for how long the others had been there.
struct LastArrival {
  core::SiteId site;
  int64_t waited_ms = 0;
};

std::optional<LastArrival> LastOf(const LoggedRound& round) {
  LastArrival last;
  int64_t last_ms = 0, second_ms = 0;
  int arrived = 0;
  for (const LoggedRound::Arrival& arrival : round.arrivals) {
    if (!arrival.arrived_unix_ms) continue;
    ++arrived;
    if (*arrival.arrived_unix_ms >= last_ms) {
      second_ms = std::exchange(last_ms, *arrival.arrived_unix_ms);
      last.site = arrival.site;
    } else {
      second_ms = std::max(second_ms, *arrival.arrived_unix_ms);
    }
  }
  if (arrived < 2) return std::nullopt;
  last.waited_ms = last_ms - second_ms;
  return last;
}

// Pure; the newest rounds of the log count.
std::optional<Straggler> FindStraggler(const StatusSnapshot& snapshot) {
  if (snapshot.mode != core::SyncMode::kSynchronous || snapshot.state != "training") return std::nullopt;
  std::map<core::SiteId, std::pair<int, int64_t>> lasts;  // rounds, and milliseconds of waiting
  int rounds = 0;
  int64_t first_ms = 0, last_ms = 0;
  for (auto round = snapshot.rounds.rbegin(); round != snapshot.rounds.rend() && rounds < kStraggleRounds; ++round) {
    if (!(*round)->decided_unix_ms) continue;
    const std::optional<LastArrival> last = LastOf(**round);
    if (!last) continue;
    ++rounds;
    ++lasts[last->site].first;
    lasts[last->site].second += last->waited_ms;
    last_ms = std::max(last_ms, *(*round)->decided_unix_ms);
    first_ms = first_ms == 0 ? last_ms : std::min(first_ms, *(*round)->decided_unix_ms);
  }
  const int64_t span_ms = last_ms - first_ms;
  if (rounds < kStraggleRounds || span_ms < kLeastStraggleMs) return std::nullopt;
  for (const auto& [site, last] : lasts) {
    const auto fragments = static_cast<double>(std::max<size_t>(1, snapshot.fragments.size()));
    const double share = static_cast<double>(last.second) / static_cast<double>(span_ms) / fragments;
    if (last.first < kStraggleLast * rounds || share < kStraggleShare) continue;
    return Straggler{.site = site, .last = last.first, .rounds = rounds, .share = share};
  }
  return std::nullopt;
}

using core::SiteState;

constexpr double kWarnFreeShare = 2;  // of the coordinator's reserve
constexpr double kCriticalFreeShare = 1.25;
constexpr double kWarnSyncS = 1;
constexpr double kCriticalSyncS = 10;
constexpr int64_t kWarnFreeFiles = 1000;  // a snapshot is a file for each fragment, and so is a segment of the log
constexpr int64_t kCriticalFreeFiles = 100;
constexpr double kStuckLogS = 5;
constexpr double kBehindS = 10;
constexpr double kSilentLinkS = 5;
constexpr double kBackAgain = 1.02;  // of the evaluation loss before
constexpr int64_t kDayS = 24 * 3600;
constexpr int64_t kWarnCertificateS = 30 * kDayS;
constexpr int64_t kCriticalCertificateS = 3 * kDayS;
constexpr double kGrowth = 2;  // of a residual's norm

using Alarms = std::vector<Alarm>;

int NumActive(const StatusSnapshot& snapshot) {
  return static_cast<int>(std::ranges::count_if(snapshot.sites, core::IsActive, &SiteStatus::state));
}

// Sites leave one by one then: none of them is missed.
bool IsEnding(const StatusSnapshot& snapshot) {
  return snapshot.finished || snapshot.stopped || snapshot.state == "done";
}

std::string Gigabytes(int64_t bytes) { return absl::StrFormat("%.2f GB", static_cast<double>(bytes) * 1e-9); }

void FindAlone(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (IsEnding(snapshot) || snapshot.state != "training" || NumActive(snapshot) != 1) return;
  const auto gone = std::ranges::count(snapshot.sites, SiteState::kGone, &SiteStatus::state);
  if (gone == 0 && snapshot.min_sites <= 1) return;
  const auto alone = std::ranges::find_if(snapshot.sites, core::IsActive, &SiteStatus::state);
  alarms.push_back(
      {.name = "site_alone",
       .severity = Severity::kWarning,
       .site = alone->name,
       .text = gone > 0 ? absl::StrCat(alone->name, " trains alone; gone: ", gone, gone == 1 ? " site" : " sites")
                        : absl::StrCat(alone->name, " trains alone; the run was to have ", snapshot.min_sites,
                                       " sites (min_sites)")});
}

void FindBelowQuorum(const StatusSnapshot& snapshot, Alarms& alarms) {
  const int active = NumActive(snapshot);
  if (snapshot.state != "paused" || snapshot.paused || IsEnding(snapshot) || active >= snapshot.min_quorum) return;
  alarms.push_back({.name = "below_quorum",
                    .severity = Severity::kCritical,
                    .text = absl::StrCat("no round closes: ", active, active == 1 ? " site is" : " sites are",
                                         " active, ", snapshot.min_quorum, " needed (min_quorum)")});
}

// One site alone says so of itself; several, and it may be the coordinator that is wrong.
void FindMismatch(const StatusSnapshot& snapshot, const SiteStatus& site, Alarms& alarms) {
  if (!site.mismatched_unix_ms) return;
  const auto several =
      std::ranges::count_if(snapshot.sites, [](const SiteStatus& one) { return one.mismatched_unix_ms.has_value(); });
  Alarm& alarm = alarms.emplace_back(Alarm{.name = "digest_mismatch",
                                           .severity = several > 1 ? Severity::kCritical : Severity::kWarning,
                                           .site = site.name});
  if (site.mismatches.empty()) {
    alarm.text = absl::StrCat(site.name, " held other parameters than the coordinator a moment ago; it agrees again");
    return;
  }
  alarm.fragment = site.mismatches.front();
  alarm.text = absl::StrCat(site.name, " holds other parameters than the coordinator in ", site.mismatches.size(),
                            site.mismatches.size() == 1 ? " fragment" : " fragments", ", first in ", *alarm.fragment);
}

void FindResidual(const SiteStatus& site, Alarms& alarms) {
  if (!site.residual || site.state == SiteState::kGone) return;
  const ResidualTrend& trend = *site.residual;
  if (!(trend.now >= kGrowth * trend.before && trend.now > trend.largest_ago)) return;
  alarms.push_back(
      {.name = "residual_growing",
       .severity = Severity::kWarning,
       .site = site.name,
       .text = absl::StrFormat("the residual of %s grew from %.3g to %.3g times what it sends in 10 rounds", site.name,
                               trend.before, trend.now)});
}

void FindSilent(const SiteStatus& site, Alarms& alarms) {
  if (!site.lease_s_left) return;
  alarms.push_back(
      {.name = "site_silent",
       .severity = Severity::kWarning,
       .site = site.name,
       .text = absl::StrFormat("the control stream of %s is broken; it is gone in %.0f s unless it returns", site.name,
                               std::ceil(*site.lease_s_left))});
}

void FindGone(const StatusSnapshot& snapshot, const SiteStatus& site, Alarms& alarms) {
  if (!site.lost) return;
  const char* const others = snapshot.others.away.empty() ? "; no round waits for it" : "";
  alarms.push_back({.name = "site_gone",
                    .severity = Severity::kWarning,
                    .site = site.name,
                    .text = absl::StrCat(site.name, " is gone: ", site.reason, others)});
}

void FindAwayShards(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (snapshot.others.away.empty() || snapshot.state == "done") return;
  const std::string which = absl::StrJoin(snapshot.others.away, " and ", [](std::string* out, const AwayShard& away) {
    absl::StrAppendFormat(out, "shard %d has not been heard of for %.0f s", away.shard, away.away_s);
  });
  alarms.push_back({.name = "shard_gone",
                    .severity = Severity::kCritical,
                    .text = absl::StrCat(which,
                                         ": no round of its fragments closes; start it again on the same "
                                         "--state_dir, with --shard=",
                                         snapshot.others.away.front().shard, "/", snapshot.shard.count)});
}

void FindStalled(const SiteStatus& site, Alarms& alarms) {
  const core::LinkProgress& link = site.progress->link;
  const bool silent = link.silent_s >= kSilentLinkS;
  if (site.state == SiteState::kGone || !(silent || site.redialled_unix_ms)) return;
  const std::string now =
      silent ? absl::StrFormat("a transfer of %s has moved no byte for %.0f s", site.name, link.silent_s)
             : absl::StrFormat("connections of %s carried nothing any more", site.name);
  alarms.push_back({.name = "transfer_stalled",
                    .severity = Severity::kWarning,
                    .site = site.name,
                    .text = absl::StrCat(
                        now, "; ", link.redials,
                        " were made anew since it was started. Either the way between loses them (a firewall, a "
                        "proxy; large packets alone: an MTU, which ping -M do -s 1400 tells), or one of the two ends "
                        "stood still")});
}

void FindFailing(const SiteStatus& site, Alarms& alarms) {
  if (site.progress->link.failing.empty() || site.state == SiteState::kGone) return;
  alarms.push_back({.name = "transfers_fail",
                    .severity = Severity::kWarning,
                    .site = site.name,
                    .text = absl::StrCat(site.name, ": ", site.progress->link.failing)});
}

void FindTwoCoordinators(const SiteStatus& site, Alarms& alarms) {
  if (site.progress->link.two_coordinators.empty() || site.state == SiteState::kGone) return;
  alarms.push_back(
      {.name = "two_coordinators",
       .severity = Severity::kCritical,
       .site = site.name,
       .text = absl::StrCat("two coordinators answer at the address that ", site.name, " calls: those of lineage ",
                            site.progress->link.two_coordinators, "; stop one of the two")});
}

void FindTwoWorkers(const SiteStatus& site, Alarms& alarms) {
  if (site.rival.empty()) return;
  alarms.push_back({.name = "two_workers", .severity = Severity::kCritical, .site = site.name, .text = site.rival});
}

void FindNoCheckpoint(const SiteStatus& site, Alarms& alarms) {
  if (site.progress->checkpoint_error.empty() || !core::IsActive(site.state)) return;
  alarms.push_back(
      {.name = "no_checkpoint",
       .severity = Severity::kWarning,
       .site = site.name,
       .text = absl::StrCat(site.name, " trains on without a checkpoint: ", site.progress->checkpoint_error)});
}

void FindStraggling(const StatusSnapshot& snapshot, Alarms& alarms) {
  const std::optional<Straggler> found = FindStraggler(snapshot);
  if (!found) return;
  alarms.push_back(
      {.name = "straggler",
       .severity = Severity::kWarning,
       .site = found->site,
       .text = absl::StrFormat("the other sites wait for %s, which was last in %d of %d rounds, for %.0f %% of the "
                               "time; see its step time and its link, or take sync.mode: quorum",
                               found->site, found->last, found->rounds, 100 * std::min(1.0, found->share))});
}

void FindDisk(const StatusSnapshot& snapshot, Alarms& alarms) {
  const HostStatus& host = snapshot.host;
  if (host.disk_free_files && *host.disk_free_files < kWarnFreeFiles) {
    alarms.push_back({.name = "disk_low",
                      .severity = *host.disk_free_files < kCriticalFreeFiles ? Severity::kCritical : Severity::kWarning,
                      .text = absl::StrCat("the disk of the state takes ", *host.disk_free_files,
                                           " more files (inodes), however many bytes are free; without, no snapshot is "
                                           "written, and the coordinator ends")});
    return;
  }
  if (!host.disk_free_bytes || host.disk_reserved_bytes <= 0) return;
  const auto free = static_cast<double>(*host.disk_free_bytes);
  const auto reserved = static_cast<double>(host.disk_reserved_bytes);
  if (free >= kWarnFreeShare * reserved) return;
  alarms.push_back(
      {.name = "disk_low",
       .severity = free < kCriticalFreeShare * reserved ? Severity::kCritical : Severity::kWarning,
       .text = absl::StrCat(Gigabytes(*host.disk_free_bytes), " are free beside the state; below ",
                            Gigabytes(host.disk_reserved_bytes), " the coordinator ends (checkpoint.min_free_bytes)")});
}

void FindSlowDisk(const StatusSnapshot& snapshot, Alarms& alarms) {
  const double slowest_s = snapshot.syncs.slowest_s;
  if (slowest_s < kWarnSyncS) return;
  alarms.push_back({.name = "disk_slow",
                    .severity = slowest_s < kCriticalSyncS ? Severity::kWarning : Severity::kCritical,
                    .text = absl::StrFormat("the state directory's disk took %.1f s to make a commit durable in the "
                                            "last minute; contributions and rounds wait for it",
                                            slowest_s)});
}

void FindStuckLog(const StatusSnapshot& snapshot, Alarms& alarms) {
  const core::LogFigures& log = snapshot.host.log;
  if (log.stuck_s < kStuckLogS) return;
  alarms.push_back({.name = "log_stuck",
                    .severity = Severity::kWarning,
                    .text = absl::StrFormat("the coordinator's log has not been read for %.0f s, and %d lines were "
                                            "dropped; see what reads its stderr: the log driver, or the program behind "
                                            "the pipe",
                                            log.stuck_s, log.dropped)});
}

void FindDamage(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (const std::string& gone = snapshot.host.missing_dir; !gone.empty()) {
    alarms.push_back({.name = "damage_found",
                      .severity = Severity::kCritical,
                      .text = absl::StrCat("the state directory ", gone,
                                           " is gone, and nothing that is acknowledged "
                                           "now survives the coordinator's end. Restore a backup, or rebuild it from "
                                           "the sites: start it on an empty one with --rebuild_from_sites")});
    return;
  }
  const std::vector<std::string>& damages = snapshot.scrub.damages;
  if (damages.empty()) return;
  const std::string others = damages.size() > 1 ? absl::StrCat(" (and ", damages.size() - 1, " more)") : "";
  alarms.push_back({.name = "damage_found", .severity = Severity::kCritical, .text = damages.front() + others});
}

void FindRefusedFiles(const StatusSnapshot& snapshot, Alarms& alarms) {
  const std::vector<std::string>& faults = snapshot.host.file_faults;
  if (faults.empty()) return;
  alarms.push_back({.name = "file_refused",
                    .severity = Severity::kWarning,
                    .text = absl::StrCat(absl::StrJoin(faults, "; "),
                                         "; the contents of before stay in use, until the next start")});
}

void FindStandbys(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (snapshot.others.standbys.empty() || !snapshot.others.standby_of.empty() || IsEnding(snapshot)) return;
  std::vector<std::string> missing;
  for (const StandbyStatus& standby : snapshot.others.standbys) {
    if (!standby.connected) missing.push_back(standby.address + " is not connected");
    if (standby.connected && !standby.unfit.empty()) {
      missing.push_back(absl::StrCat(standby.address, " could not lead: ", standby.unfit));
    }
    if (!standby.connected || (standby.whole && standby.seconds_behind < kBehindS)) continue;
    alarms.push_back(
        {.name = "standby_behind",
         .severity = Severity::kWarning,
         .text = standby.whole
                     ? absl::StrFormat("the standby at %s is %.0f s behind, with %s to be sent", standby.address,
                                       standby.seconds_behind, Gigabytes(standby.bytes_behind))
                     : absl::StrCat("the first copy of the standby at ", standby.address,
                                    " is not whole: ", Gigabytes(standby.bytes_behind), " are to be sent")});
  }
  if (missing.size() < snapshot.others.standbys.size()) return;
  alarms.push_back({.name = "no_standby",
                    .severity = Severity::kWarning,
                    .text = absl::StrCat("no standby could lead (", absl::StrJoin(missing, ", "),
                                         "): if this machine is lost now, so is the run's state")});
}

void FindCopies(const StatusSnapshot& snapshot, Alarms& alarms) {
  const CopyStatus& copies = snapshot.others.copies;
  if (copies.failed.empty()) return;
  alarms.push_back({.name = "copy_failed",
                    .severity = Severity::kWarning,
                    .text = absl::StrCat("--copy_to=", copies.directory, ": ", copies.failed,
                                         "; the next copy is made after the next snapshot")});
}

void FindCertificate(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (!snapshot.host.certificate_expires_unix_s) return;
  const int64_t left_s = *snapshot.host.certificate_expires_unix_s - snapshot.unix_ms / 1000;
  if (left_s >= kWarnCertificateS) return;
  alarms.push_back({.name = "certificate_ending",
                    .severity = left_s < kCriticalCertificateS ? Severity::kCritical : Severity::kWarning,
                    .text = left_s <= 0 ? "the coordinator's certificate has ended: sites cannot connect"
                                        : absl::StrFormat("the coordinator's certificate ends in %.1f days",
                                                          static_cast<double>(left_s) / kDayS)});
}

// One alarm for each reason: all its sites wait for the same thing.
void FindStrangers(const StatusSnapshot& snapshot, Alarms& alarms) {
  std::map<std::string, std::vector<const WaitingStranger*>> by_alarm;
  for (const WaitingStranger& stranger : snapshot.strangers) by_alarm[stranger.alarm].push_back(&stranger);
  for (const auto& [name, strangers] : by_alarm) {
    const std::string who = absl::StrJoin(
        strangers, ", ", [](std::string* out, const WaitingStranger* stranger) { out->append(stranger->site); });
    alarms.push_back(
        {.name = name,
         .severity = name == "unproven_claim" ? Severity::kWarning : Severity::kCritical,
         .text = absl::StrCat(who, strangers.size() == 1 ? " waits: " : " wait: ", strangers.front()->text)});
  }
  if (snapshot.completed.empty() || by_alarm.contains("history_lost")) return;
  alarms.push_back({.name = "history_lost", .severity = Severity::kCritical, .text = snapshot.completed});
}

void FindRefused(const StatusSnapshot& snapshot, const SiteStatus& site, Alarms& alarms) {
  if (site.quarantined) {
    const bool all = std::ranges::all_of(
        snapshot.sites, [](const SiteStatus& one) { return one.quarantined || !core::IsActive(one.state); });
    alarms.push_back(
        {.name = "site_quarantined",
         .severity = Severity::kCritical,
         .site = site.name,
         .text = absl::StrCat(site.name, " is in quarantine: ", site.refusals, " contributions in a row were refused",
                              site.norm.refused.empty() ? "" : ", the last one because ", site.norm.refused,
                              all ? "; no round closes: causewayctl release --all"
                                  : absl::StrCat("; causewayctl release --site=", site.name))});
  } else if (!site.norm.doubted.empty()) {
    alarms.push_back({.name = "unproven_claim",
                      .severity = Severity::kWarning,
                      .site = site.name,
                      .fragment = site.norm.fragment,
                      .text = absl::StrCat("the contribution of ", site.name, " of base version ", site.norm.base, " ",
                                           site.norm.doubted)});
  } else if (!site.norm.refused.empty()) {
    alarms.push_back({.name = "contribution_refused",
                      .severity = Severity::kWarning,
                      .site = site.name,
                      .fragment = site.norm.fragment,
                      .text = absl::StrCat("a contribution of ", site.name, " to fragment ", site.norm.fragment,
                                           " was refused: ", site.norm.refused)});
  }
}

void FindNoisy(const SiteStatus& site, Alarms& alarms) {
  if (site.noisy.empty()) return;
  alarms.push_back({.name = "site_noisy",
                    .severity = Severity::kWarning,
                    .site = site.name,
                    .text = absl::StrCat("a stream of ", site.name, " was ended in the last minute: ", site.noisy)});
}

// The global model evaluates as well as before that round.
bool IsOvercome(const StatusSnapshot& snapshot, const core::Outlier& outlier) {
  std::optional<double> before, after;
  for (const EvalPoint& point : snapshot.eval_history) {
    (point.version < outlier.version ? before : after) = point.loss;
  }
  return before && after && *after <= kBackAgain * *before;
}

void FindOutliers(const StatusSnapshot& snapshot, Alarms& alarms) {
  using enum core::Outlier::Kind;
  for (const core::Outlier& outlier : snapshot.outliers) {
    if (outlier.kind == kWhole && IsOvercome(snapshot, outlier)) continue;
    const bool critical = outlier.kind == kBroken || outlier.kind == kWhole;
    Alarm& alarm = alarms.emplace_back(Alarm{.name = outlier.kind == kApart     ? "lengths_apart"
                                                     : outlier.kind == kAwaited ? "round_stands"
                                                                                : "outlier_merged",
                                             .severity = critical ? Severity::kCritical : Severity::kWarning,
                                             .site = outlier.site,
                                             .fragment = outlier.fragment});
    if (outlier.kind == kApart) {
      alarm.text = absl::StrCat(outlier.text, " in fragment ", outlier.fragment, ": other data, or another lr?");
      continue;
    }
    if (outlier.kind == kAwaited) {
      alarm.text =
          absl::StrCat(outlier.text, "; see its log and its link, or: causewayctl drain --site=", outlier.site);
      continue;
    }
    alarm.text = absl::StrCat(outlier.site, " contributed to version ", outlier.version, " of fragment ",
                              outlier.fragment, " what is far too long: ", outlier.text);
    if (outlier.kind == kWhole) alarm.text += "; causewayctl rollback --to=VERSION takes it back";
    if (outlier.kind == kBroken) alarm.text += "; most others' were not, so it counts at the usual length alone";
  }
}

void FindLossApart(const SiteStatus& site, Alarms& alarms) {
  if (!site.loss_of_others) return;
  alarms.push_back({.name = "loss_outlier",
                    .severity = Severity::kWarning,
                    .site = site.name,
                    .text = absl::StrFormat("the loss of %s is %.3g, that of the others %.3g: other data?", site.name,
                                            site.progress->loss, *site.loss_of_others)});
}

void FindPaused(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (!snapshot.paused) return;
  alarms.push_back({.name = "run_paused",
                    .severity = Severity::kWarning,
                    .text = "paused by an operator: sites hold, no round closes (causewayctl resume)"});
}

void FindDivergence(const StatusSnapshot& snapshot, Alarms& alarms) {
  if (!snapshot.eval_loss_latest) return;
  const double latest = *snapshot.eval_loss_latest;
  if (!std::isfinite(latest)) {
    alarms.push_back(
        {.name = "training_diverges", .severity = Severity::kCritical, .text = "the evaluation loss is not a number"});
  } else if (snapshot.eval_loss_start && latest > *snapshot.eval_loss_start) {
    alarms.push_back({.name = "training_diverges",
                      .severity = Severity::kWarning,
                      .text = absl::StrFormat("the evaluation loss is %.4g, above %.4g at the start", latest,
                                              *snapshot.eval_loss_start)});
  }
}

}  // namespace

std::string_view SeverityName(Severity severity) { return severity == Severity::kCritical ? "critical" : "warning"; }

Alarms FindAlarms(const StatusSnapshot& snapshot) {
  Alarms alarms;
  FindBelowQuorum(snapshot, alarms);
  FindDivergence(snapshot, alarms);
  for (const SiteStatus& site : snapshot.sites) FindMismatch(snapshot, site, alarms);
  FindDisk(snapshot, alarms);
  FindSlowDisk(snapshot, alarms);
  FindAwayShards(snapshot, alarms);
  FindStraggling(snapshot, alarms);
  for (const SiteStatus& site : snapshot.sites) FindStalled(site, alarms);
  for (const SiteStatus& site : snapshot.sites) {
    FindFailing(site, alarms);
    FindTwoCoordinators(site, alarms);
    FindTwoWorkers(site, alarms);
    FindNoCheckpoint(site, alarms);
  }
  FindStuckLog(snapshot, alarms);
  FindDamage(snapshot, alarms);
  FindCertificate(snapshot, alarms);
  FindStandbys(snapshot, alarms);
  FindCopies(snapshot, alarms);
  FindRefusedFiles(snapshot, alarms);
  FindAlone(snapshot, alarms);
  for (const SiteStatus& site : snapshot.sites) {
    if (!IsEnding(snapshot)) FindGone(snapshot, site, alarms);
  }
  for (const SiteStatus& site : snapshot.sites) FindResidual(site, alarms);
  for (const SiteStatus& site : snapshot.sites) FindSilent(site, alarms);
  for (const SiteStatus& site : snapshot.sites) FindLossApart(site, alarms);
  for (const SiteStatus& site : snapshot.sites) FindRefused(snapshot, site, alarms);
  for (const SiteStatus& site : snapshot.sites) FindNoisy(site, alarms);
  FindOutliers(snapshot, alarms);
  FindPaused(snapshot, alarms);
  FindStrangers(snapshot, alarms);
  std::ranges::stable_sort(alarms, std::greater(), &Alarm::severity);
  return alarms;
}

void AlarmBook::Note(Alarms& alarms, int64_t unix_ms) {
  std::map<Key, int64_t> since;
  for (Alarm& alarm : alarms) {
    const Key key(alarm.name, alarm.site);  // the fragment shown for a mismatch may change while the alarm is on
    const auto before = since_unix_ms_.find(key);
    alarm.since_unix_ms = before == since_unix_ms_.end() ? unix_ms : before->second;
    since[key] = alarm.since_unix_ms;
  }
  since_unix_ms_ = std::move(since);
}

}  // namespace causeway::server
