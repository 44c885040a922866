#include "ctl/round_text.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/codec_id.h"

namespace causeway::ctl {
namespace {

using Json = nlohmann::ordered_json;

double Mbit(double bytes) { return bytes * 8 / 1e6; }

std::string MbitText(double bytes_per_s) {
  if (!std::isfinite(bytes_per_s)) return "unlimited";
  const double mbit = Mbit(bytes_per_s);
  return mbit < 10000 ? absl::StrFormat("%.4g Mbit/s", mbit) : absl::StrFormat("%.4g Gbit/s", mbit / 1000);
}

std::string BytesText(double bytes) {
  if (bytes < 1e6) return absl::StrFormat("%.4g kB", bytes / 1e3);
  return bytes < 1e10 ? absl::StrFormat("%.4g MB", bytes / 1e6) : absl::StrFormat("%.4g GB", bytes / 1e9);
}

// "3.20 s" with digits enough that steps of milliseconds show.
std::string SecondsText(double seconds) { return absl::StrFormat("%.4g s", seconds); }

std::string LegText(const plan::RoundPlan& plan, core::CodecId codec, double bytes) {
  return absl::StrFormat("%s, %.2f bits a value", core::CodecName(codec),
                         8 * bytes / static_cast<double>(plan.parameters));
}

// Bytes that one site's full round has on a leg, sent or not.
double LegBytes(const plan::RoundPlan& plan, int64_t plan::FragmentTraffic::*bytes) {
  double sum = 0;
  for (const plan::FragmentTraffic& fragment : plan.input.fragments) sum += static_cast<double>(fragment.*bytes);
  return sum;
}

double LongestInFlight(const plan::RoundTime& round) {
  return std::ranges::max_element(round.fragments, {}, &plan::FragmentTime::in_flight_s)->in_flight_s;
}

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json MbitJson(const std::optional<double>& bytes_per_s) {
  return bytes_per_s.has_value() ? Number(Mbit(*bytes_per_s)) : Json(nullptr);
}

std::string SiteNeeds(const plan::RoundPlan& plan) {
  if (!plan.site_bytes_per_s.has_value()) {
    return absl::StrFormat("more than a faster link for a utilization of %.2f (see bottleneck)",
                           plan::kPlannedUtilization);
  }
  return absl::StrFormat("%s for a utilization of %.2f", MbitText(*plan.site_bytes_per_s), plan::kPlannedUtilization);
}

std::string HubNeeds(const plan::RoundPlan& plan) {
  return plan.hub_bytes_per_s.has_value() ? MbitText(*plan.hub_bytes_per_s) : "more than any link";
}

std::string TrafficText(const plan::RoundPlan& plan) {
  const plan::RoundTime& round = plan.round;
  const double sites = plan.setting.sites;
  std::string text = absl::StrFormat("%-22s%-18s%-18s\n", "payload", "up", "down");
  const auto row = [&](const char* name, const std::string& up, const std::string& down) {
    absl::StrAppendFormat(&text, "%-22s%-18s%-18s\n", name, up, down);
  };
  const auto busy = [&](double busy_s) { return absl::StrFormat("%.1f %%", 100 * busy_s / round.round_s); };
  row("a site, a round", BytesText(round.up_bytes), BytesText(round.down_bytes));
  row("  mean", MbitText(round.up_bytes_per_s), MbitText(round.down_bytes_per_s));
  row("  peak, over 1 s", MbitText(round.up_peak_bytes_per_s), MbitText(round.down_peak_bytes_per_s));
  row("  link busy", busy(round.site_up_busy_s), busy(round.site_down_busy_s));
  if (plan.input.shards_at_sites) return text;
  row("coordinator, a round", BytesText(sites * round.up_bytes), BytesText(sites * round.down_bytes));
  row("  mean", MbitText(sites * round.up_bytes_per_s), MbitText(sites * round.down_bytes_per_s));
  row("  peak, over 1 s", MbitText(sites * round.up_peak_bytes_per_s), MbitText(sites * round.down_peak_bytes_per_s));
  row("  link busy", busy(round.hub_in_busy_s), busy(round.hub_out_busy_s));
  return text;
}

}  // namespace

std::string RoundText(const plan::RoundPlan& plan) {
  const plan::RoundTime& round = plan.round;
  const core::SyncConfig& sync = plan.config.sync;
  std::string text = absl::StrFormat(
      "model       %.4g M parameters in %d fragments, %d sites\n"
      "schedule    sync_every %d, fragment_sync_delay %d%s, %s\n"
      "codec       up %s; down %s\n"
      "links       a site %s, the coordinator %s, round trip %.4g ms, %.0f %% of a link is payload\n\n",
      static_cast<double>(plan.parameters) / 1e6, sync.num_fragments, plan.setting.sites, sync.sync_every, round.delay,
      sync.auto_delay() ? " (auto)" : "", plan.input.waits ? "synchronous" : "quorum",
      LegText(plan, plan.config.codec.up, LegBytes(plan, &plan::FragmentTraffic::up_bytes)),
      LegText(plan, plan.config.codec.down, LegBytes(plan, &plan::FragmentTraffic::down_bytes)),
      MbitText(plan.setting.site_link.up_bytes_per_s), MbitText(plan.setting.hub_link.up_bytes_per_s),
      1000 * plan.setting.round_trip_s, 100 * plan.setting.payload_share);
  absl::StrAppendFormat(&text,
                        "a round     %s: %d steps of %.4g ms are %s of computing, stall %s\n"
                        "utilization %.3f (computing / wall time); the busiest link alone allows %.3f\n"
                        "bottleneck  %s\n"
                        "placement   %s\n"
                        "a fragment  up to %s from send to update ready\n\n",
                        SecondsText(round.round_s), sync.sync_every, 1000 * plan.setting.step_s,
                        SecondsText(round.compute_s), SecondsText(round.stall_s), round.utilization, round.bound,
                        plan.bottleneck, plan.placement, SecondsText(LongestInFlight(round)));
  absl::StrAppend(&text, TrafficText(plan));
  const bool at_sites = plan.input.shards_at_sites;
  absl::StrAppendFormat(&text, "\na site needs         %s\n", SiteNeeds(plan));
  if (!at_sites) absl::StrAppendFormat(&text, "coordinator needs    %s so as not to hold the run up\n", HubNeeds(plan));
  absl::StrAppendFormat(&text, "%s   %s: %s parameters, momentum%s; %s contributions in flight; %s other\n",
                        at_sites ? "memory of a shard " : "coordinator memory", BytesText(plan.memory_bytes()),
                        BytesText(plan.state_bytes), plan.config.codec.feedback_down != 0 ? " and residual" : "",
                        BytesText(plan.contributions_bytes), BytesText(plan.other_bytes));
  return text;
}

std::string RoundJson(const plan::RoundPlan& plan) {
  const plan::RoundTime& round = plan.round;
  const core::SyncConfig& sync = plan.config.sync;
  const auto leg = [](core::CodecId codec, double bytes, double mean, double peak, double site_busy, double hub_busy) {
    return Json{{"codec", core::CodecName(codec)},    {"site_bytes_per_round", bytes},
                {"site_mean_mbit_per_s", Mbit(mean)}, {"site_peak_mbit_per_s", Mbit(peak)},
                {"site_link_busy_s", site_busy},      {"coordinator_link_busy_s", hub_busy}};
  };
  Json json = {{"parameters", plan.parameters},
               {"sites", plan.setting.sites},
               {"sync_every", sync.sync_every},
               {"num_fragments", sync.num_fragments},
               {"fragment_sync_delay", round.delay},
               {"fragment_sync_delay_is_auto", sync.auto_delay()},
               {"mode", plan.input.waits ? "synchronous" : "quorum"},
               {"step_s", plan.setting.step_s},
               {"round_trip_s", plan.setting.round_trip_s},
               {"link_mbit", MbitJson(plan.setting.site_link.up_bytes_per_s)},
               {"hub_mbit", MbitJson(plan.setting.hub_link.up_bytes_per_s)},
               {"payload_share", plan.setting.payload_share}};
  json["round_s"] = round.round_s;
  json["compute_s"] = round.compute_s;
  json["stall_s"] = round.stall_s;
  json["utilization"] = round.utilization;
  json["utilization_bound"] = round.bound;
  json["sent_share"] = round.sent_share;
  json["bottleneck"] = plan.bottleneck;
  json["placement"] = plan.input.shards_at_sites ? "sites" : "hub";
  json["other_placement_utilization"] = plan.other_placement_utilization;
  json["placement_advice"] = plan.placement;
  json["longest_in_flight_s"] = LongestInFlight(round);
  json["up"] = leg(plan.config.codec.up, round.up_bytes, round.up_bytes_per_s, round.up_peak_bytes_per_s,
                   round.site_up_busy_s, round.hub_in_busy_s);
  json["down"] = leg(plan.config.codec.down, round.down_bytes, round.down_bytes_per_s, round.down_peak_bytes_per_s,
                     round.site_down_busy_s, round.hub_out_busy_s);
  json["site_needs_mbit"] = MbitJson(plan.site_bytes_per_s);
  json["coordinator_needs_mbit"] = MbitJson(plan.hub_bytes_per_s);
  json["coordinator_memory_bytes"] = plan.memory_bytes();
  json["coordinator_state_bytes"] = plan.state_bytes;
  json["coordinator_contributions_bytes"] = plan.contributions_bytes;
  return json.dump();
}

std::string SweepText(const std::vector<plan::SweepRow>& rows, const plan::RoundSetting& setting) {
  std::string text = absl::StrFormat(
      "Payload of each leg where nothing stalls, and utilization by fragment_sync_delay. A site's link has %s, the "
      "coordinator's %s.\n\n%10s  %-14s%12s%14s%16s",
      MbitText(setting.site_link.up_bytes_per_s), MbitText(setting.hub_link.up_bytes_per_s), "sync_every", "codec",
      "MB a round", "site Mbit/s", "coordinator");
  for (int64_t delay : plan::kSweepDelays) absl::StrAppendFormat(&text, "%8s", absl::StrCat("tau=", delay));
  absl::StrAppendFormat(&text, "%14s\n", "auto (tau)");
  for (const plan::SweepRow& row : rows) {
    absl::StrAppendFormat(&text, "%10d  %-14s%12.2f%14.2f%16.2f", row.sync_every, core::CodecName(row.codec),
                          row.bytes / 1e6, Mbit(row.site_bytes_per_s), Mbit(row.hub_bytes_per_s));
    for (size_t i = 0; i < std::size(plan::kSweepDelays); ++i) {
      absl::StrAppendFormat(&text, "%8s",
                            row.utilization[i].has_value() ? absl::StrFormat("%.3f", *row.utilization[i]) : "-");
    }
    absl::StrAppendFormat(&text, "%14s\n", absl::StrFormat("%.3f (%d)", row.best_utilization, row.least_delay));
  }
  return text;
}

std::string SweepJson(const std::vector<plan::SweepRow>& rows) {
  std::string text;
  for (const plan::SweepRow& row : rows) {
    Json by_delay = Json::object();
    for (size_t i = 0; i < std::size(plan::kSweepDelays); ++i) {
      if (row.utilization[i].has_value()) by_delay[absl::StrCat(plan::kSweepDelays[i])] = *row.utilization[i];
    }
    const Json json = {{"sync_every", row.sync_every},
                       {"codec", core::CodecName(row.codec)},
                       {"site_bytes_per_round", row.bytes},
                       {"site_mbit_per_s", Mbit(row.site_bytes_per_s)},
                       {"coordinator_mbit_per_s", Mbit(row.hub_bytes_per_s)},
                       {"utilization_by_delay", by_delay},
                       {"least_delay", row.least_delay},
                       {"utilization_with_least_delay", row.best_utilization}};
    absl::StrAppend(&text, json.dump(), "\n");
  }
  return text;
}

}  // namespace causeway::ctl
