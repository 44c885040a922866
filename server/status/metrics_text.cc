#include "server/status/metrics_text.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "server/status/alarms.h"

namespace causeway::server {
namespace {

using core::SiteState;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::array kRunStates = {"waiting", "training", "paused", "done"};

// One row per metric that every site has.
struct SiteMetric {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const SiteStatus&);  // NaN: there is none
};

double OrNone(bool has, double value) { return has ? value : std::nan(""); }

constexpr SiteMetric kSiteMetrics[] = {
    {"causeway_site_up_bytes_total", "Payload bytes received from the site.", MetricType::Counter,
     [](const SiteStatus& site) { return static_cast<double>(site.up_bytes); }},
    {"causeway_site_down_bytes_total", "Payload bytes sent to the site.", MetricType::Counter,
     [](const SiteStatus& site) { return static_cast<double>(site.down_bytes); }},
    {"causeway_site_stall_seconds_total", "Time the site's step loop waited for updates.", MetricType::Counter,
     [](const SiteStatus& site) { return site.counts.stall_s; }},
    {"causeway_site_compute_seconds_total", "Time the site's step loop computed.", MetricType::Counter,
     [](const SiteStatus& site) { return site.counts.compute_s; }},
    {"causeway_site_step", "The inner step that the site has done.", MetricType::Gauge,
     [](const SiteStatus& site) { return static_cast<double>(site.progress->step); }},
    {"causeway_site_steps_total", "Inner steps taken since the coordinator's start, also those repeated.",
     MetricType::Counter, [](const SiteStatus& site) { return site.counts.steps; }},
    {"causeway_site_tokens_total", "Tokens trained on since the coordinator's start.", MetricType::Counter,
     [](const SiteStatus& site) { return site.counts.tokens; }},
    {"causeway_site_contributions_sent_total", "Contributions sent since the coordinator's start.", MetricType::Counter,
     [](const SiteStatus& site) { return site.counts.sent; }},
    {"causeway_site_contributions_merged_total", "Contributions merged since the coordinator's start.",
     MetricType::Counter, [](const SiteStatus& site) { return site.counts.merged; }},
    {"causeway_site_utilization_ratio", "Share of the site's time in which it computed.", MetricType::Gauge,
     [](const SiteStatus& site) {
       return OrNone(site.progress->wall_s > 0, site.progress->compute_s / site.progress->wall_s);
     }},
    {"causeway_site_loss", "Latest training loss, nats per token.", MetricType::Gauge,
     [](const SiteStatus& site) { return site.progress->loss; }},
    {"causeway_site_slack_seconds", "Least time between an update's arrival and its need; below 0 it was waited for.",
     MetricType::Gauge, [](const SiteStatus& site) { return site.progress->slack_s; }},
    {"causeway_site_ranks", "Processes of the site.", MetricType::Gauge,
     [](const SiteStatus& site) { return static_cast<double>(site.progress->ranks.ranks); }},
    {"causeway_site_residual_norm", "Norm of the site's error feedback.", MetricType::Gauge,
     [](const SiteStatus& site) { return site.progress->residual_norm; }},
    {"causeway_site_staleness_rounds", "Rounds that the site's last merged contribution was behind.", MetricType::Gauge,
     [](const SiteStatus& site) { return static_cast<double>(site.staleness); }},
    {"causeway_site_digest_mismatches", "Fragments of which the site reports other parameters than the coordinator.",
     MetricType::Gauge, [](const SiteStatus& site) { return static_cast<double>(site.mismatches.size()); }},
    {"causeway_site_contributing", "Whether the open rounds expect the site (0 or 1).", MetricType::Gauge,
     [](const SiteStatus& site) { return site.contributing ? 1.0 : 0.0; }},
    {"causeway_site_contribution_norm", "Length of the site's newest contribution.", MetricType::Gauge,
     [](const SiteStatus& site) { return site.norm.norm; }},
    {"causeway_site_refusals", "Contributions of the site refused by their values, in a row.", MetricType::Gauge,
     [](const SiteStatus& site) { return static_cast<double>(site.refusals); }},
    {"causeway_site_quarantined", "Whether the site is in quarantine (0 or 1).", MetricType::Gauge,
     [](const SiteStatus& site) { return site.quarantined ? 1.0 : 0.0; }},
    {"causeway_site_merged_weight_ratio", "Mean share of a round's weight, since the coordinator's start.",
     MetricType::Gauge, [](const SiteStatus& site) { return site.merged_weight; }},
    {"causeway_site_cosine_ratio", "Cosine of the site's last merged contribution to the mean of its round.",
     MetricType::Gauge,
     [](const SiteStatus& site) { return OrNone(site.cosine.has_value(), site.cosine ? site.cosine->value : 0); }},
};

ClientMetric Measured(MetricType type, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return metric;
}

void Add(Families& families, const char* name, const char* help, MetricType type, double value, Labels labels = {}) {
  families.push_back({name, help, type, {Measured(type, std::move(labels), value)}});
}

void AddSites(const StatusSnapshot& snapshot, Families& families) {
  for (const SiteMetric& row : kSiteMetrics) {
    MetricFamily family{row.name, row.help, row.type, {}};
    for (const SiteStatus& site : snapshot.sites) {
      const double value = row.value(site);
      if (site.state == SiteState::kGone && row.type != MetricType::Counter) continue;
      if (std::isfinite(value)) family.metric.push_back(Measured(row.type, {{"site", site.name}}, value));
    }
    families.push_back(std::move(family));
  }
  MetricFamily states{"causeway_site_state", "Whether the site is in that state (0 or 1).", MetricType::Gauge, {}};
  MetricFamily counts{"causeway_sites", "Sites in that state.", MetricType::Gauge, {}};
  for (const SiteState state : core::kSiteStates) {
    const std::string name = core::SiteStateName(state);
    for (const SiteStatus& site : snapshot.sites) {
      states.metric.push_back(
          Measured(MetricType::Gauge, {{"site", site.name}, {"state", name}}, site.state == state ? 1 : 0));
    }
    const auto count = std::ranges::count(snapshot.sites, state, &SiteStatus::state);
    counts.metric.push_back(Measured(MetricType::Gauge, {{"state", name}}, static_cast<double>(count)));
  }
  families.push_back(std::move(states));
  families.push_back(std::move(counts));
}

void AddFragments(const StatusSnapshot& snapshot, Families& families) {
  MetricFamily versions{"causeway_fragment_version", "Merged version of the fragment.", MetricType::Gauge, {}};
  MetricFamily contributors{
      "causeway_fragment_contributors", "Contributions to the fragment's open round.", MetricType::Gauge, {}};
  for (const FragmentStatus& fragment : snapshot.fragments) {
    const Labels labels = {{"fragment", std::to_string(fragment.id)}};
    versions.metric.push_back(Measured(MetricType::Gauge, labels, static_cast<double>(fragment.committed.version)));
    contributors.metric.push_back(
        Measured(MetricType::Gauge, labels, static_cast<double>(fragment.contributors.size())));
  }
  families.push_back(std::move(versions));
  families.push_back(std::move(contributors));
}

// One row per figure of the outer gradient.
struct GradientMetric {
  const char* name;
  const char* help;
  std::optional<double> OuterGradientFigures::*value;
};

constexpr GradientMetric kGradientMetrics[] = {
    {"causeway_fragment_gradient_norm", "Norm of the last merged outer gradient.", &OuterGradientFigures::norm},
    {"causeway_fragment_outer_correlation_ratio", "Correlation of successive outer gradients, over 16 rounds.",
     &OuterGradientFigures::correlation},
    {"causeway_fragment_outer_amplification_ratio", "The outer step before its learning rate, by the outer gradient.",
     &OuterGradientFigures::amplification},
    {"causeway_fragment_outer_amplification_predicted_ratio", "The same as the correlation predicts it.",
     &OuterGradientFigures::predicted_amplification},
    {"causeway_fragment_outer_lr_effective", "Outer learning rate with what momentum makes of it.",
     &OuterGradientFigures::effective_lr},
};

void AddGradients(const StatusSnapshot& snapshot, Families& families) {
  for (const GradientMetric& row : kGradientMetrics) {
    MetricFamily family{row.name, row.help, MetricType::Gauge, {}};
    for (const FragmentStatus& fragment : snapshot.fragments) {
      const std::optional<double> value = fragment.gradient ? (*fragment.gradient).*row.value : std::nullopt;
      if (!value || !std::isfinite(*value)) continue;
      family.metric.push_back(Measured(MetricType::Gauge, {{"fragment", std::to_string(fragment.id)}}, *value));
    }
    families.push_back(std::move(family));
  }
}

void AddAlarms(const StatusSnapshot& snapshot, Families& families) {
  MetricFamily alarms{"causeway_alarm", "Alarms that are on (1).", MetricType::Gauge, {}};
  std::vector<std::pair<std::string, Severity>> seen;  // several sites may have the same one
  for (const Alarm& alarm : snapshot.alarms) {
    const std::pair key(alarm.name, alarm.severity);
    if (std::ranges::count(seen, key) > 0) continue;
    seen.push_back(key);
    alarms.metric.push_back(Measured(
        MetricType::Gauge, {{"alarm", alarm.name}, {"severity", std::string(SeverityName(alarm.severity))}}, 1));
  }
  families.push_back(std::move(alarms));
}

ClientMetric Timed(const TimeHistogram& times, Labels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.histogram.sample_sum = times.sum;
  for (size_t i = 0; i < times.counts.size(); ++i) {
    metric.histogram.sample_count += times.counts[i];
    const double bound = i < TimeHistogram::kUpperBounds.size() ? TimeHistogram::kUpperBounds[i] : HUGE_VAL;
    metric.histogram.bucket.push_back({metric.histogram.sample_count, bound});
  }
  return metric;
}

void AddTimes(const RunTimes& times, Families& families) {
  const MetricType type = MetricType::Histogram;
  families.push_back(
      {"causeway_round_seconds", "From a round's first chunk until it was decided.", type, {Timed(times.rounds, {})}});
  families.push_back({"causeway_merge_seconds", "Merging a round.", type, {Timed(times.merges, {})}});
  families.push_back({"causeway_transfer_seconds",
                      "One fragment's payload, from or to one site.",
                      type,
                      {Timed(times.up, {{"direction", "up"}}), Timed(times.down, {{"direction", "down"}})}});
}

void AddSyncs(const SyncTimes& syncs, Families& families) {
  ClientMetric metric;
  metric.summary.sample_count = syncs.count;
  metric.summary.sample_sum = syncs.seconds;
  metric.summary.quantile.push_back({1, syncs.slowest_s});
  families.push_back(
      {"causeway_fsync_seconds",
       "Making a commit durable on the state directory's disk; quantile 1: the slowest of the last minute.",
       MetricType::Summary,
       {metric}});
}

void AddRun(const StatusSnapshot& snapshot, Families& families) {
  const MetricType gauge = MetricType::Gauge;
  Add(families, "causeway_rounds_total", "Rounds decided.", MetricType::Counter,
      static_cast<double>(snapshot.rounds_decided));
  MetricFamily states{"causeway_run_state", "Whether the run is in that state (0 or 1).", gauge, {}};
  for (const char* state : kRunStates) {
    states.metric.push_back(Measured(gauge, {{"state", state}}, snapshot.state == state ? 1 : 0));
  }
  families.push_back(std::move(states));
  Add(families, "causeway_quorum_sites", "Sites that a round needs (min_quorum).", gauge, snapshot.min_quorum);
  Add(families, "causeway_parameters", "Parameters of the model.", gauge, static_cast<double>(snapshot.parameters));
  Add(families, "causeway_float32_every_step_bytes",
      "Bytes that averaging float32 gradients in every step would have sent, both ways.", gauge,
      static_cast<double>(snapshot.Float32EveryStepBytes()));
  if (snapshot.eval_loss_latest && std::isfinite(*snapshot.eval_loss_latest)) {
    Add(families, "causeway_eval_loss", "Latest evaluation loss of the global model, nats per token.", gauge,
        *snapshot.eval_loss_latest);
  }
  MetricFamily by_site{"causeway_site_eval_loss",
                       "Latest evaluation loss of the global model on what the site holds out, nats per token.",
                       gauge,
                       {}};
  for (const SiteStatus& site : snapshot.sites) {
    if (!site.eval || !std::isfinite(site.eval->loss)) continue;
    by_site.metric.push_back(Measured(gauge, {{"site", site.name}}, site.eval->loss));
  }
  families.push_back(std::move(by_site));
  Add(families, "causeway_build_info", "The program's version; always 1.", gauge, 1, {{"version", snapshot.version}});
}

void AddHost(const HostStatus& host, const ProcessStatus& process, int event_streams, Families& families) {
  const MetricType gauge = MetricType::Gauge;
  if (host.disk_free_bytes) {
    Add(families, "causeway_disk_free_bytes", "Free bytes beside the state directory.", gauge,
        static_cast<double>(*host.disk_free_bytes));
  }
  Add(families, "causeway_disk_reserved_bytes", "The coordinator ends before less is free (checkpoint.min_free_bytes).",
      gauge, static_cast<double>(host.disk_reserved_bytes));
  if (host.certificate_expires_unix_s) {
    Add(families, "causeway_certificate_expiry_timestamp_seconds", "When the coordinator's certificate ends.", gauge,
        static_cast<double>(*host.certificate_expires_unix_s));
  }
  Add(families, "causeway_http_event_streams", "Open streams of GET /events.", gauge, event_streams);
  Add(families, "process_start_time_seconds", "When the process started.", gauge, process.start_unix_s);
  Add(families, "process_resident_memory_bytes", "Resident memory.", gauge,
      static_cast<double>(process.resident_bytes));
  Add(families, "process_cpu_seconds_total", "User and system time.", MetricType::Counter, process.cpu_s);
}

void AddStandbys(const std::vector<StandbyStatus>& standbys, Families& families) {
  const MetricType gauge = MetricType::Gauge;
  MetricFamily up{"causeway_standby_up", "Whether the standby is connected and could lead (0 or 1).", gauge, {}};
  MetricFamily seconds{"causeway_standby_behind_seconds", "How far the standby's copy is behind.", gauge, {}};
  MetricFamily bytes{"causeway_standby_behind_bytes", "Bytes not yet sent to the standby.", gauge, {}};
  for (const StandbyStatus& standby : standbys) {
    const Labels labels = {{"standby", standby.address}};
    up.metric.push_back(Measured(gauge, labels, standby.connected && standby.whole && standby.unfit.empty() ? 1 : 0));
    if (!standby.connected) continue;
    seconds.metric.push_back(Measured(gauge, labels, standby.seconds_behind));
    bytes.metric.push_back(Measured(gauge, labels, static_cast<double>(standby.bytes_behind)));
  }
  for (MetricFamily* family : {&up, &seconds, &bytes}) families.push_back(std::move(*family));
}

void AddCopies(const CopyStatus& copies, Families& families) {
  if (copies.directory.empty()) return;
  const auto gauge = MetricType::Gauge;
  Add(families, "causeway_copy_up", "Whether the newest copy is where it should be (0 or 1).", gauge,
      copies.failed.empty() ? 1 : 0);
  if (copies.set.empty()) return;
  Add(families, "causeway_copy_timestamp_seconds", "When the newest copy was begun.", gauge,
      static_cast<double>(copies.unix_ms) * 1e-3);
  Add(families, "causeway_copy_hook_seconds", "How long its hook took.", gauge, copies.hook_s);
}

void AddScrub(const ScrubStatus& scrub, Families& families) {
  const auto gauge = MetricType::Gauge;
  Add(families, "causeway_scrub_passes_total", "Times that the state directory was read again.", MetricType::Counter,
      static_cast<double>(scrub.passes));
  if (scrub.passes == 0) return;
  Add(families, "causeway_scrub_bytes", "Bytes that the last of them read.", gauge, static_cast<double>(scrub.bytes));
  Add(families, "causeway_scrub_ended_timestamp_seconds", "When the last of them ended.", gauge,
      static_cast<double>(scrub.ended_unix_ms) * 1e-3);
}

}  // namespace

std::string MetricsText(const StatusSnapshot& snapshot, const ProcessStatus& process, int event_streams) {
  Families families;
  AddSites(snapshot, families);
  AddFragments(snapshot, families);
  AddGradients(snapshot, families);
  AddRun(snapshot, families);
  AddAlarms(snapshot, families);
  AddTimes(snapshot.times, families);
  AddSyncs(snapshot.syncs, families);
  AddScrub(snapshot.scrub, families);
  AddCopies(snapshot.others.copies, families);
  AddStandbys(snapshot.others.standbys, families);
  AddHost(snapshot.host, process, event_streams, families);
  std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace causeway::server
