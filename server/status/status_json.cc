#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/digest.h"
#include "server/status/alarms.h"
#include "server/status/status_snapshot.h"
#include "server/status/thinned_series.h"

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr int kSchemaVersion = 1;  // rises when a field changes its meaning or goes

// What keeps a status of 64 sites and 64 fragments within 200 kB.
constexpr size_t kLossPointsOfAll = 1600;
constexpr size_t kLeastLossPoints = 8;
constexpr size_t kReducedContributors = 16;
constexpr size_t kReducedReasonBytes = 160;

json Number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }
json Number(const std::optional<double>& value) { return value ? Number(*value) : json(nullptr); }

template <typename T>
json OrNull(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

// For curves: a loss is drawn, not compared.
double Rounded(double loss) { return std::round(loss * 1e4) / 1e4; }

std::string Shortened(const std::string& reason, bool reduced) {
  return reduced && reason.size() > kReducedReasonBytes ? reason.substr(0, kReducedReasonBytes) + "…" : reason;
}

bool Mismatches(const SiteStatus& site, core::FragmentId fragment) {
  return std::ranges::count(site.mismatches, fragment) > 0;
}

json DigestsOf(const SiteStatus& site, bool reduced) {
  json digests = json::object();
  for (const auto& [fragment, anchor] : site.progress->digests) {
    if (reduced && !Mismatches(site, fragment)) continue;
    digests[std::to_string(fragment)] = {{"version", anchor.version}, {"digest", core::DigestText(anchor.digest)}};
  }
  return digests;
}

json FragmentsOf(const core::Progress& progress, bool reduced) {
  json fragments = json::array();
  const auto least =
      std::ranges::min_element(progress.fragments, {}, [](const auto& fragment) { return fragment.second.slack_s; });
  for (auto fragment = progress.fragments.begin(); fragment != progress.fragments.end(); ++fragment) {
    if (reduced && fragment != least) continue;
    fragments.push_back({{"id", fragment->first},
                         {"slack_s", Number(fragment->second.slack_s)},
                         {"fragment_sync_delay", fragment->second.delay},
                         {"reason", fragment->second.reason}});
  }
  return fragments;
}

json LinkOf(const core::LinkProgress& link) {
  const auto measured = [](double value) { return value > 0 ? Number(value) : json(nullptr); };
  return {{"up_bytes_per_s", measured(link.up_bytes_per_s)},
          {"down_bytes_per_s", measured(link.down_bytes_per_s)},
          {"round_trip_s", measured(link.round_trip_s)},
          {"channels", link.channels}};
}

json LossesOf(const SiteStatus& site, size_t most) {
  json losses = json::array();
  for (const LossPoint& point : EvenlyOf(site.loss_history, most)) {
    losses.push_back(json::array({point.unix_ms, Rounded(point.loss)}));
  }
  return losses;
}

void AddProgress(const core::Progress& progress, json& site) {
  site["step"] = progress.step;
  site["tokens"] = progress.tokens;
  site["loss"] = Number(progress.loss);
  site["tokens_per_s"] = Number(progress.tokens_per_s);
  site["utilization"] = progress.wall_s > 0 ? Number(progress.compute_s / progress.wall_s) : json(nullptr);
  site["compute_s"] = Number(progress.compute_s);
  site["wall_s"] = Number(progress.wall_s);
  site["stall_s"] = Number(progress.stall_s);
  site["slack_s"] = Number(progress.slack_s);
  site["contributions_sent"] = progress.contributions_sent;
  site["contributions_merged"] = progress.contributions_merged;
  site["contributions_skipped"] = progress.contributions_skipped;
  site["residual_norm"] = Number(progress.residual_norm);
  site["in_flight"] = progress.in_flight;
  site["link"] = LinkOf(progress.link);
}

void AddTaking(const SiteStatus& status, bool reduced, json& site) {
  site["contributing"] = status.contributing;
  site["contributing_reason"] = Shortened(status.contributing_reason, reduced);
  site["staleness"] = status.staleness;
  site["lease_s_left"] = Number(status.lease_s_left);
  site["last_merged"] = site["missed"] = nullptr;
  if (const auto& merged = status.last_merged) {
    site["last_merged"] = {{"fragment", merged->fragment}, {"version", merged->version}, {"unix_ms", merged->unix_ms}};
  }
  if (const auto& missed = status.missed) {
    site["missed"] = {
        {"fragment", missed->fragment}, {"version", missed->version}, {"reason", Shortened(missed->reason, reduced)}};
  }
}

json SiteJson(const SiteStatus& status, bool reduced, size_t loss_points) {
  json site = {{"name", status.name},
               {"state", core::SiteStateName(status.state)},
               {"reason", Shortened(status.reason, reduced)},
               {"up_bytes", status.up_bytes},
               {"down_bytes", status.down_bytes},
               {"up_bytes_per_s", Number(status.up_bytes_per_s)},
               {"down_bytes_per_s", Number(status.down_bytes_per_s)},
               {"up_mean_bytes_per_s", Number(status.up_rate.mean)},
               {"down_mean_bytes_per_s", Number(status.down_rate.mean)},
               {"up_peak_bytes_per_s", Number(status.up_rate.peak)},
               {"down_peak_bytes_per_s", Number(status.down_rate.peak)},
               {"merged_weight", Number(status.merged_weight)},
               {"loss_history", LossesOf(status, loss_points)},
               {"fragments", FragmentsOf(*status.progress, reduced)},
               {"digests", DigestsOf(status, reduced)},
               {"digests_matching", status.progress->digests.size() - status.mismatches.size()}};
  AddProgress(*status.progress, site);
  AddTaking(status, reduced, site);
  return site;
}

json FragmentJson(const FragmentStatus& fragment, bool reduced) {
  json contributors = json::array();
  for (const core::SiteId& site : fragment.contributors) {
    if (reduced && contributors.size() == kReducedContributors) break;
    contributors.push_back(site);
  }
  return {{"id", fragment.id},
          {"parameters", fragment.parameters},
          {"version", fragment.committed.version},
          {"digest", core::DigestText(fragment.committed.digest)},
          {"state", fragment.state},
          {"reason", Shortened(fragment.reason, reduced)},
          {"contributors", std::move(contributors)},
          {"contributors_count", fragment.contributors.size()}};
}

json AlarmsOf(const StatusSnapshot& snapshot) {
  json alarms = json::array();
  for (const Alarm& alarm : snapshot.alarms) {
    alarms.push_back({{"name", alarm.name},
                      {"severity", SeverityName(alarm.severity)},
                      {"site", OrNull(alarm.site)},
                      {"fragment", OrNull(alarm.fragment)},
                      {"text", alarm.text},
                      {"since_unix_ms", alarm.since_unix_ms}});
  }
  return alarms;
}

json EvalLossOf(const StatusSnapshot& snapshot) {
  json history = json::array();
  for (const EvalPoint& point : snapshot.eval_history) {
    history.push_back({{"unix_ms", point.unix_ms}, {"version", point.version}, {"loss", Rounded(point.loss)}});
  }
  return {{"start", Number(snapshot.eval_loss_start)},
          {"latest", Number(snapshot.eval_loss_latest)},
          {"versions", snapshot.eval_loss_versions},
          {"history", std::move(history)}};
}

json CodecOf(const StatusSnapshot& snapshot) {
  return {{"up", core::CodecName(snapshot.codec.up)},    {"down", core::CodecName(snapshot.codec.down)},
          {"auto_up", !snapshot.codec.allow_up.empty()}, {"auto_down", !snapshot.codec.allow_down.empty()},
          {"reason_up", snapshot.codec_reason_up},       {"reason_down", snapshot.codec_reason_down},
          {"feedback_up", snapshot.codec.feedback_up},   {"feedback_down", snapshot.codec.feedback_down}};
}

void AddHost(const HostStatus& host, json& status) {
  status["disk"] = {{"free_bytes", OrNull(host.disk_free_bytes)}, {"reserved_bytes", host.disk_reserved_bytes}};
  status["certificate"] = nullptr;
  if (host.certificate_expires_unix_s) status["certificate"] = {{"expires_unix_s", *host.certificate_expires_unix_s}};
}

}  // namespace

int StatusSnapshot::ContributingSites() const {
  return static_cast<int>(std::ranges::count(sites, true, &SiteStatus::contributing));
}

int64_t StatusSnapshot::Float32EveryStepBytes() const {
  int64_t steps = 0;
  for (const SiteStatus& site : sites) steps += site.progress->step;
  return 2 * 4 * parameters * steps;
}

std::string StatusJson(const StatusSnapshot& snapshot, Details details) {
  const bool reduced = details == Details::kAuto && snapshot.sites.size() * snapshot.fragments.size() > kFullDetails;
  json status = {{"schema_version", kSchemaVersion},
                 {"version", snapshot.version},
                 {"unix_ms", snapshot.unix_ms},
                 {"run_id", snapshot.run_id},
                 {"protocol", snapshot.protocol},
                 {"epoch", snapshot.epoch},
                 {"shard", snapshot.shard.index},
                 {"num_shards", snapshot.shard.count},
                 {"state", snapshot.state},
                 {"reason", snapshot.reason},
                 {"uptime_s", Number(snapshot.uptime_s)},
                 {"parameters", snapshot.parameters},
                 {"mode", snapshot.mode == core::SyncMode::kQuorum ? "quorum" : "synchronous"},
                 {"min_quorum", snapshot.min_quorum},
                 {"contributing_sites", snapshot.ContributingSites()},
                 {"float32_every_step_bytes", snapshot.Float32EveryStepBytes()},
                 {"alarms", AlarmsOf(snapshot)},
                 {"details", reduced ? "reduced" : "full"},
                 {"config", json::parse(snapshot.config_json, nullptr, /*allow_exceptions=*/false)},
                 {"codec", CodecOf(snapshot)},
                 {"eval_loss", EvalLossOf(snapshot)},
                 {"sites", json::array()},
                 {"fragments", json::array()}};
  AddHost(snapshot.host, status);
  const size_t loss_points = std::max(kLeastLossPoints, kLossPointsOfAll / std::max<size_t>(1, snapshot.sites.size()));
  for (const SiteStatus& site : snapshot.sites) status["sites"].push_back(SiteJson(site, reduced, loss_points));
  for (const FragmentStatus& fragment : snapshot.fragments) {
    status["fragments"].push_back(FragmentJson(fragment, reduced));
  }
  // Strings that are not UTF-8 (a reason that quotes a peer) are shown with replacement characters.
  return status.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace causeway::server
