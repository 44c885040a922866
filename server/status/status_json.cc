#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_join.h"
#include "core/digest.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "core/text.h"
#include "server/status/alarms.h"
#include "server/status/json_writer.h"
#include "server/status/status_snapshot.h"
#include "server/status/thinned_series.h"

namespace causeway::server {
namespace {

// A site's internal training figures, as members of its object in GET /status: its optimizer's state, its ranks.

// Null where nothing was measured.
inline std::optional<double> Known(double value) { return value > 0 ? std::optional(value) : std::nullopt; }

constexpr size_t kReducedReasonBytes = 160;

void WriteOnebitAdam(JsonWriter& json, const std::optional<core::OnebitProgress>& onebit) {
  if (!onebit) return;
  json.Key("onebit_adam");
  json.BeginObject();
  json.Member("phase", onebit->frozen_at > 0 ? "frozen" : "warm-up");
  if (onebit->frozen_at > 0) json.Member("frozen_at", onebit->frozen_at);
  json.Member("variance_ratio", Known(onebit->ratio));
  json.Member("compression", Known(onebit->compression));
  json.EndObject();
}

void WriteLevels(JsonWriter& json, const std::vector<core::LevelTraffic>& levels) {
  if (levels.empty()) return;
  json.Key("levels");
  json.BeginArray();
  for (const core::LevelTraffic& level : levels) {
    json.Object("name", level.name, "predicted_bytes", level.predicted, "measured_bytes", level.measured);
  }
  json.EndArray();
}

// A reason, shortened if the status is reduced because of its size.
std::string Shortened(const std::string& reason, bool reduced) {
  return reduced ? core::Clipped(reason, kReducedReasonBytes) : reason;
}

void WriteOffload(JsonWriter& json, const std::optional<core::OffloadProgress>& offload, bool reduced) {
  json.Key("offload");
  if (!offload) return json.Null();
  json.BeginObject();
  json.Member("k", core::InterleaveName(offload->k));
  json.Member("subgroup", offload->subgroup);
  json.Member("reason", Shortened(offload->reason, reduced));
  json.Member("predicted_update_s", Known(offload->predicted_s));
  json.Member("update_s", Known(offload->measured_s));
  json.Member("waited_for_copies_s", offload->waited_s);
  if (!reduced && (offload->resident > 0 || offload->to_device_bytes > 0)) {
    json.Key("device");
    json.Object("resident", offload->resident, "device_subgroups", offload->device_subgroups, "cpu_subgroups",
                offload->cpu_subgroups, "to_device_bytes", offload->to_device_bytes, "to_host_bytes",
                offload->to_host_bytes, "early_gradient_bytes", offload->early_gradient_bytes);
  }
  json.EndObject();
}

void WriteRanks(JsonWriter& json, const core::RankProgress& ranks, bool reduced) {
  json.Key("ranks");
  json.BeginObject();
  json.Member("ranks", ranks.ranks);
  json.Member("hosts", ranks.hosts);
  json.Member("slowest", Shortened(ranks.slowest, reduced));
  json.Member("slowest_step_s", Known(ranks.slowest_step_s));
  json.Member("standing_still", Shortened(ranks.standing_still, reduced));
  if (ranks.step_bytes > 0) json.Member("step_bytes", ranks.step_bytes);
  WriteOnebitAdam(json, ranks.onebit_adam);
  if (!reduced) WriteLevels(json, ranks.levels);
  json.EndObject();
}

constexpr int kSchemaVersion = 1;  // raised when a field changes its meaning or is removed

// Limits that keep a status of 64 sites and 64 fragments within 200 kB.
constexpr size_t kLossPointsOfAll = 1550;
constexpr size_t kLeastLossPoints = 8;
constexpr size_t kReducedContributors = 16;

// For curves: a loss is drawn, not compared.
double Rounded(double loss) { return std::round(loss * 1e4) / 1e4; }

bool Mismatches(const SiteStatus& site, core::FragmentId fragment) {
  return std::ranges::count(site.mismatches, fragment) > 0;
}

// `write` writes one element of `range` as a value.
template <typename Range, typename Write>
void WriteArray(JsonWriter& json, std::string_view name, const Range& range, const Write& write) {
  json.Key(name);
  json.BeginArray();
  for (const auto& element : range) write(element);
  json.EndArray();
}

void WriteDigests(JsonWriter& json, const SiteStatus& site, bool reduced) {
  json.Key("digests");
  json.BeginObject();
  for (const auto& [fragment, anchor] : site.progress->digests) {
    if (reduced && !Mismatches(site, fragment)) continue;
    json.Key(std::to_string(fragment));
    json.Object("version", anchor.version, "digest", core::DigestText(anchor.digest));
  }
  json.EndObject();
  json.Member("digests_matching", site.progress->digests.size() - site.mismatches.size());
}

void WriteFragments(JsonWriter& json, const core::Progress& progress, bool reduced) {
  const auto least =
      std::ranges::min_element(progress.fragments, {}, [](const auto& fragment) { return fragment.second.slack_s; });
  WriteArray(json, "fragments", progress.fragments, [&](const auto& fragment) {
    if (reduced && &fragment != &*least) return;
    json.BeginObject();
    json.Member("id", fragment.first);
    json.Member("slack_s", fragment.second.slack_s);
    json.Member("fragment_sync_delay", fragment.second.delay);
    json.Member("reason", fragment.second.reason);
    if (!fragment.second.encoded_on.empty()) json.Member("encoded_on", fragment.second.encoded_on);
    json.EndObject();
  });
}

void WriteLink(JsonWriter& json, const core::LinkProgress& link) {
  json.Key("link");
  json.Object("up_bytes_per_s", Known(link.up_bytes_per_s), "down_bytes_per_s", Known(link.down_bytes_per_s),
              "round_trip_s", Known(link.round_trip_s), "channels", link.channels);
}

void WriteLosses(JsonWriter& json, const SiteStatus& site, size_t most) {
  WriteArray(json, "loss_history", EvenlyOf(site.loss_history, most), [&](const LossPoint& point) {
    json.BeginArray();
    json.Value(point.unix_ms);
    json.Value(Rounded(point.loss));
    json.EndArray();
  });
}

// The figures of a site's report that stand beside one another; what has parts of its own follows.
struct FigureWriter {
  JsonWriter& json;

  void operator()(const char* name, core::Figure, std::integral auto value) { json.Member(name, value); }
  void operator()(const char* name, core::Figure, double value) { json.Member(name, value); }
  // Flags, texts and options only where they say something.
  void operator()(const char* name, core::Figure, bool value) {
    if (value) json.Member(name, value);
  }
  void operator()(const char* name, core::Figure, const std::string& value) {
    if (!value.empty()) json.Member(name, value);
  }
  void operator()(const char* name, core::Figure, const std::optional<double>& value) {
    if (value && std::string_view(name) != "eval_loss") json.Member(name, *value);  // which is the run's
  }
  void List(auto&&...) {}
  void Part(auto&&...) {}
  void Each(auto&&...) {}
};

void WriteProgress(JsonWriter& json, const core::Progress& progress, bool reduced) {
  FigureWriter writer{json};
  Figures(progress, writer);
  json.Member("utilization", progress.wall_s > 0 ? std::optional(progress.compute_s / progress.wall_s) : std::nullopt);
  WriteArray(json, "in_flight", progress.in_flight, [&](const std::string& transfer) { json.Value(transfer); });
  WriteLink(json, progress.link);
  WriteOffload(json, progress.offload, reduced);
  WriteRanks(json, progress.ranks, reduced);
}

void WriteData(JsonWriter& json, std::string_view name, const std::optional<core::DataFingerprint>& data) {
  json.OrNull(name, data, [&](const core::DataFingerprint& known) {
    json.Object("tokens", known.tokens, "fingerprint", core::DigestText(known.digest));
  });
}

void WriteTaking(JsonWriter& json, const SiteStatus& site, bool reduced) {
  json.Member("contributing", site.contributing);
  json.Member("contributing_reason", Shortened(site.contributing_reason, reduced));
  json.Member("staleness", site.staleness);
  json.Member("norm", site.norm.norm);
  json.Member("refusals", site.refusals);
  json.Member("refused", Shortened(site.norm.refused, reduced));
  json.Member("quarantined", site.quarantined);
  json.Member("noisy", Shortened(site.noisy, reduced));
  json.Member("rival", Shortened(site.rival, reduced));
  json.Member("lease_s_left", site.lease_s_left);
  json.Member("merged_weight", site.merged_weight);
  json.OrNull("last_merged", site.last_merged, [&](const auto& merged) {
    json.Object("fragment", merged.fragment, "version", merged.version, "unix_ms", merged.unix_ms);
  });
  json.OrNull("cosine", site.cosine, [&](const auto& cosine) {
    json.Object("fragment", cosine.fragment, "version", cosine.version, "value", Rounded(cosine.value));
  });
  json.OrNull("missed", site.missed, [&](const auto& missed) {
    json.Object("fragment", missed.fragment, "version", missed.version, "reason", Shortened(missed.reason, reduced));
  });
}

void WriteSite(JsonWriter& json, const SiteStatus& site, bool reduced, size_t loss_points) {
  json.BeginObject();
  json.Member("name", site.name);
  json.Member("state", core::SiteStateName(site.state));
  json.Member("reason", Shortened(site.reason, reduced));
  if (site.finished) json.Member("finished", true);
  json.Member("up_bytes", site.up_bytes);
  json.Member("down_bytes", site.down_bytes);
  json.Member("up_bytes_per_s", site.up_bytes_per_s);
  json.Member("down_bytes_per_s", site.down_bytes_per_s);
  json.Member("up_mean_bytes_per_s", site.up_rate.mean);
  json.Member("down_mean_bytes_per_s", site.down_rate.mean);
  json.Member("up_peak_bytes_per_s", site.up_rate.peak);
  json.Member("down_peak_bytes_per_s", site.down_rate.peak);
  WriteProgress(json, *site.progress, reduced);
  WriteTaking(json, site, reduced);
  WriteData(json, "data", site.data.training);
  WriteData(json, "held_out", site.data.held_out);
  WriteLosses(json, site, loss_points);
  WriteFragments(json, *site.progress, reduced);
  WriteDigests(json, site, reduced);
  json.EndObject();
}

// Unknown figures are null.
void WriteGradient(JsonWriter& json, const OuterGradientFigures& gradient) {
  const auto rounded = [](std::optional<double> value) { return value ? std::optional(Rounded(*value)) : value; };
  json.Member("gradient_norm", gradient.norm);
  json.Member("outer_correlation", rounded(gradient.correlation));
  json.Member("outer_amplification", rounded(gradient.amplification));
  json.Member("outer_amplification_predicted", rounded(gradient.predicted_amplification));
  json.Member("outer_lr_effective", rounded(gradient.effective_lr));
}

void WriteFragment(JsonWriter& json, const FragmentStatus& fragment, bool reduced) {
  json.BeginObject();
  json.Member("id", fragment.id);
  json.Member("parameters", fragment.parameters);
  json.Member("version", fragment.committed.version);
  json.Member("digest", core::DigestText(fragment.committed.digest));
  json.Member("state", fragment.state);
  json.Member("reason", Shortened(fragment.reason, reduced));
  WriteGradient(json, fragment.gradient.value_or(OuterGradientFigures{}));
  const std::span all = fragment.contributors;
  const auto shown = reduced ? all.first(std::min(kReducedContributors, all.size())) : all;
  WriteArray(json, "contributors", shown, [&](const core::SiteId& site) { json.Value(site); });
  json.Member("contributors_count", fragment.contributors.size());
  json.EndObject();
}

void WriteAlarms(JsonWriter& json, const StatusSnapshot& snapshot) {
  WriteArray(json, "alarms", snapshot.alarms, [&](const Alarm& alarm) {
    json.Object("name", alarm.name, "severity", SeverityName(alarm.severity), "site", alarm.site, "fragment",
                alarm.fragment, "text", alarm.text, "since_unix_ms", alarm.since_unix_ms);
  });
}

template <typename Versions>
void WriteVersions(JsonWriter& json, const Versions& versions) {
  WriteArray(json, "versions", versions, [&](core::Version version) { json.Value(version); });
}

// The evaluation losses of sites that evaluate on their own held-out data.
void WriteEvalLossBySite(JsonWriter& json, const StatusSnapshot& snapshot) {
  json.Key("eval_loss_by_site");
  json.BeginObject();
  for (const SiteStatus& site : snapshot.sites) {
    if (!site.eval) continue;
    json.Key(site.name);
    json.BeginObject();
    json.Member("loss", site.eval->loss);
    WriteVersions(json, site.eval->versions);
    json.EndObject();
  }
  json.EndObject();
}

void WriteEvalLoss(JsonWriter& json, const StatusSnapshot& snapshot) {
  json.Member("eval_loss_reason", snapshot.eval_loss_reason);
  WriteEvalLossBySite(json, snapshot);
  json.Key("eval_loss");
  if (!snapshot.eval_loss_reason.empty()) return json.Null();
  json.BeginObject();
  json.Member("start", snapshot.eval_loss_start);
  json.Member("latest", snapshot.eval_loss_latest);
  WriteVersions(json, snapshot.eval_loss_versions);
  WriteArray(json, "history", snapshot.eval_history, [&](const EvalPoint& point) {
    json.Object("unix_ms", point.unix_ms, "version", point.version, "loss", Rounded(point.loss));
  });
  json.EndObject();
}

void WriteCodec(JsonWriter& json, const StatusSnapshot& snapshot) {
  json.Key("codec");
  json.Object("up", core::CodecName(snapshot.codec.up), "down", core::CodecName(snapshot.codec.down),  //
              "auto_up", !snapshot.codec.allow_up.empty(), "auto_down", snapshot.codec.chooses_down(), "reason_up",
              snapshot.codec_reason_up, "reason_down", snapshot.codec_reason_down,  //
              "feedback_up", double{snapshot.codec.feedback_up}, "feedback_down", double{snapshot.codec.feedback_down});
}

void WriteScrub(JsonWriter& json, const ScrubStatus& scrub) {
  json.Key("scrub");
  json.BeginObject();
  json.Member("passes", scrub.passes);
  json.Member("bytes", scrub.bytes);
  json.Member("ended_unix_ms", scrub.ended_unix_ms);
  WriteArray(json, "damages", scrub.damages, [&](const std::string& damage) { json.Value(damage); });
  json.EndObject();
}

void WriteCopies(JsonWriter& json, const CopyStatus& copies) {
  json.Key("copies");
  if (copies.directory.empty()) return json.Null();
  json.Object("directory", copies.directory, "set", copies.set, "unix_ms", copies.unix_ms, "bytes", copies.bytes,
              "new_bytes", copies.new_bytes, "seconds", copies.seconds, "hook_ended", copies.hook_ended, "hook_s",
              copies.hook_s, "sent", copies.sent, "failed", copies.failed);
}

void WriteHost(JsonWriter& json, const StatusSnapshot& snapshot) {
  const HostStatus& host = snapshot.host;
  json.Key("disk");
  json.BeginObject();
  json.Member("free_bytes", host.disk_free_bytes);
  json.Member("reserved_bytes", host.disk_reserved_bytes);
  json.Member("slowest_sync_s", snapshot.syncs.slowest_s);
  WriteScrub(json, snapshot.scrub);
  json.EndObject();
  json.OrNull("certificate", host.certificate_expires_unix_s, [&](int64_t s) { json.Object("expires_unix_s", s); });
}

void WriteStandbys(JsonWriter& json, const StatusSnapshot& snapshot) {
  json.Member("role", snapshot.others.standby_of.empty() ? "leader" : "standby");
  json.Member("standby_of", snapshot.others.standby_of);
  WriteArray(json, "standbys", snapshot.others.standbys, [&](const StandbyStatus& standby) {
    json.Object("address", standby.address, "connected", standby.connected, "whole", standby.whole, "unfit",
                standby.unfit,  //
                "records_behind", static_cast<int64_t>(standby.records_behind), "bytes_behind", standby.bytes_behind,
                "seconds_behind", standby.seconds_behind);
  });
}

void WriteRun(JsonWriter& json, const StatusSnapshot& snapshot, bool reduced) {
  json.Member("schema_version", kSchemaVersion);
  json.Member("version", snapshot.version);
  json.Member("unix_ms", snapshot.unix_ms);
  json.Member("run_id", snapshot.run_id);
  json.Member("protocol", snapshot.protocol);
  json.Member("epoch", snapshot.epoch);
  json.Member("shard", snapshot.shard.index);
  json.Member("num_shards", snapshot.shard.count);
  json.Member("state", snapshot.state);
  json.Member("reason", snapshot.reason);
  json.Member("grpc", snapshot.grpc);
  json.Member("uptime_s", snapshot.uptime_s);
  json.Member("parameters", snapshot.parameters);
  json.Member("mode", snapshot.mode == core::SyncMode::kQuorum ? "quorum" : "synchronous");
  json.Member("min_quorum", snapshot.min_quorum);
  json.Member("contributing_sites", snapshot.ContributingSites());
  json.Member("float32_every_step_bytes", snapshot.Float32EveryStepBytes());
  json.Member("details", reduced ? "reduced" : "full");
  json.Key("config");
  json.Raw(snapshot.config_json.empty() ? "null" : snapshot.config_json);
  WriteArray(json, "settings", snapshot.settings, [&](const core::SettingsRevision& revision) {
    json.BeginObject();
    json.Member("revision", revision.number);
    json.Member("unix_ms", revision.unix_ms);
    json.Member("step", revision.step);
    json.Member("changes", absl::StrJoin(revision.changes, ", "));
    WriteArray(json, "versions", revision.versions, [&](core::Version version) { json.Value(version); });
    json.EndObject();
  });
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
  JsonWriter json;
  json.BeginObject();
  WriteRun(json, snapshot, reduced);
  WriteStandbys(json, snapshot);
  WriteCopies(json, snapshot.others.copies);
  WriteHost(json, snapshot);
  WriteAlarms(json, snapshot);
  WriteCodec(json, snapshot);
  WriteEvalLoss(json, snapshot);
  const size_t loss_points = std::max(kLeastLossPoints, kLossPointsOfAll / std::max<size_t>(1, snapshot.sites.size()));
  WriteArray(json, "sites", snapshot.sites,
             [&](const SiteStatus& site) { WriteSite(json, site, reduced, loss_points); });
  WriteArray(json, "fragments", snapshot.fragments,
             [&](const FragmentStatus& fragment) { WriteFragment(json, fragment, reduced); });
  json.EndObject();
  return std::move(json).Take();
}

}  // namespace causeway::server
