#include <cmath>
#include <nlohmann/json.hpp>

#include "core/digest.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr int kSchemaVersion = 1;  // rises when a field changes its meaning or goes

json Number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }
json Number(const std::optional<double>& value) { return value ? Number(*value) : json(nullptr); }

json DigestsOf(const core::Progress& progress) {
  json digests = json::object();
  for (const auto& [fragment, anchor] : progress.digests) {
    digests[std::to_string(fragment)] = {{"version", anchor.version}, {"digest", core::DigestText(anchor.digest)}};
  }
  return digests;
}

json FragmentsOf(const core::Progress& progress) {
  json fragments = json::array();
  for (const auto& [id, fragment] : progress.fragments) {
    fragments.push_back({{"id", id},
                         {"slack_s", Number(fragment.slack_s)},
                         {"fragment_sync_delay", fragment.delay},
                         {"reason", fragment.reason}});
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

json SiteJson(const SiteStatus& site) {
  const core::Progress& progress = site.progress;
  return {{"name", site.name},
          {"state", core::SiteStateName(site.state)},
          {"reason", site.reason},
          {"step", progress.step},
          {"tokens", progress.tokens},
          {"loss", Number(progress.loss)},
          {"tokens_per_s", Number(progress.tokens_per_s)},
          {"utilization", progress.wall_s > 0 ? Number(progress.compute_s / progress.wall_s) : json(nullptr)},
          {"compute_s", Number(progress.compute_s)},
          {"wall_s", Number(progress.wall_s)},
          {"stall_s", Number(progress.stall_s)},
          {"slack_s", Number(progress.slack_s)},
          {"up_bytes", site.up_bytes},
          {"down_bytes", site.down_bytes},
          {"up_bytes_per_s", Number(site.up_bytes_per_s)},
          {"down_bytes_per_s", Number(site.down_bytes_per_s)},
          {"contributions_sent", progress.contributions_sent},
          {"contributions_merged", progress.contributions_merged},
          {"contributions_skipped", progress.contributions_skipped},
          {"merged_weight", Number(site.merged_weight)},
          {"residual_norm", Number(progress.residual_norm)},
          {"in_flight", progress.in_flight},
          {"fragments", FragmentsOf(progress)},
          {"link", LinkOf(progress.link)},
          {"digests", DigestsOf(progress)}};
}

json FragmentJson(const FragmentStatus& fragment) {
  return {{"id", fragment.id},
          {"parameters", fragment.parameters},
          {"version", fragment.committed.version},
          {"digest", core::DigestText(fragment.committed.digest)},
          {"state", fragment.state},
          {"reason", fragment.reason},
          {"contributors", fragment.contributors}};
}

}  // namespace

std::string StatusJson(const StatusSnapshot& snapshot) {
  json status = {{"schema_version", kSchemaVersion},
                 {"run_id", snapshot.run_id},
                 {"protocol", snapshot.protocol},
                 {"epoch", snapshot.epoch},
                 {"shard", snapshot.shard.index},
                 {"num_shards", snapshot.shard.count},
                 {"state", snapshot.state},
                 {"reason", snapshot.reason},
                 {"uptime_s", Number(snapshot.uptime_s)},
                 {"parameters", snapshot.parameters},
                 {"config", json::parse(snapshot.config_json, nullptr, /*allow_exceptions=*/false)},
                 {"codec",
                  {{"up", core::CodecName(snapshot.codec.up)},
                   {"down", core::CodecName(snapshot.codec.down)},
                   {"auto_up", !snapshot.codec.allow_up.empty()},
                   {"auto_down", !snapshot.codec.allow_down.empty()},
                   {"reason_up", snapshot.codec_reason_up},
                   {"reason_down", snapshot.codec_reason_down},
                   {"feedback_up", snapshot.codec.feedback_up},
                   {"feedback_down", snapshot.codec.feedback_down}}},
                 {"eval_loss",
                  {{"start", Number(snapshot.eval_loss_start)},
                   {"latest", Number(snapshot.eval_loss_latest)},
                   {"versions", snapshot.eval_loss_versions}}},
                 {"sites", json::array()},
                 {"fragments", json::array()}};
  for (const SiteStatus& site : snapshot.sites) status["sites"].push_back(SiteJson(site));
  for (const FragmentStatus& fragment : snapshot.fragments) status["fragments"].push_back(FragmentJson(fragment));
  // Strings that are not UTF-8 (a reason that quotes a peer) are shown with replacement characters.
  return status.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace causeway::server
