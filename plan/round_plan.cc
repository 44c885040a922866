#include "plan/round_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "codecs/chunk_plan.h"
#include "core/check.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"

namespace causeway::plan {
namespace {

// docs/data/measurements.md, "Coordinator": W, v, and with feedback on the way back ē; contributions with what the heap
// adds; program, connections and updates on their way to the disk.
constexpr double kStateBytesPerParameter = 8;
constexpr double kResidualBytesPerParameter = 4;
constexpr double kHeldShare = 1.1;
constexpr double kOtherBytes = 150e6;

constexpr double kNegligible = 0.005;    // stall as a share of the round that is not worth a word
constexpr double kSaturated = 0.97;      // share of the round that a link is busy when it is the reason for the stall
constexpr double kHubUnnoticed = 0.001;  // utilization that a hub may cost and still count as free

constexpr core::CodecId kSweptCodecs[] = {core::CodecId::kFloat32,    core::CodecId::kBfloat16,
                                          core::CodecId::kInt8,       core::CodecId::kInt4,
                                          core::CodecId::kRotatedLm2, core::CodecId::kRotatedSign};

absl::StatusOr<RoundTimeInput> LoadInput(const core::RunConfig& config, const RoundSetting& setting) {
  const bool external = config.model_kind == core::ModelKind::kExternal;
  const core::Manifest manifest = external ? setting.manifest : core::ModelManifest(config);
  core::SyncConfig whole = config.sync;  // all parts of a fragment are in transit at once
  whole.parts = 1;
  ASSIGN_OR_RETURN(const core::FragmentMap map, core::BuildFragmentMap(manifest, whole));
  RoundTimeInput input{.sites = setting.sites,
                       .sync_every = config.sync.sync_every,
                       .offsets = config.sync.fragment_offsets,
                       .waits = config.sync.mode == core::SyncMode::kSynchronous,
                       .step_s = setting.step_s,
                       .site_link = setting.site_link,
                       .hub_link = setting.hub_link,
                       .shards_at_sites = config.placement == core::Placement::kSites,
                       .payload_share = setting.payload_share,
                       .round_trip_s = setting.round_trip_s,
                       .codec_s_per_value = setting.codec_s_per_value,
                       .merge_s_per_value = setting.merge_s_per_value};
  if (!config.sync.auto_delay()) input.delay = config.sync.fragment_sync_delay;
  for (const core::Fragment& fragment : map.fragments()) {
    input.fragments.push_back({fragment.parameters, codecs::EncodedBytes(fragment, codecs::UpLeg(config)),
                               codecs::EncodedBytes(fragment, codecs::DownLeg(config))});
  }
  return input;
}

struct BusyLink {
  const char* name;
  double busy_s;
};

BusyLink BusiestLink(const RoundTime& round) {
  const BusyLink links[] = {{"a site's link, upwards", round.site_up_busy_s},
                            {"a site's link, downwards", round.site_down_busy_s},
                            {"the coordinator's link, inwards", round.hub_in_busy_s},
                            {"the coordinator's link, outwards", round.hub_out_busy_s}};
  return *std::ranges::max_element(links, {}, &BusyLink::busy_s);
}

std::string QuorumBottleneck(const RoundTime& round) {
  if (round.sent_share > 1 - kNegligible) return "none: no site waits in quorum mode, and every send goes out.";
  return absl::StrFormat(
      "%s. No site waits in quorum mode, but only %.0f %% of the sends go out; the content of the others is in the "
      "next one. Fewer bits a value or a larger sync_every would help.",
      BusiestLink(round).name, 100 * round.sent_share);
}

std::string Bottleneck(const RoundTimeInput& input, const RoundTime& round) {
  if (!input.waits) return QuorumBottleneck(round);
  const auto tightest = std::ranges::min_element(round.fragments, {}, &FragmentTime::slack_s);
  if (round.stall_s < kNegligible * round.round_s) {
    return absl::StrFormat("none: every update is there when it is due, the latest %.3f s before.",
                           std::max(0.0, tightest->slack_s));
  }
  const BusyLink busiest = BusiestLink(round);
  if (busiest.busy_s > kSaturated * round.round_s) {
    return absl::StrFormat(
        "%s: it is busy all the time, %.3g s for the bytes of %.3g s of computing. Fewer bits a value or a larger "
        "sync_every would help.",
        busiest.name, busiest.busy_s, round.compute_s);
  }
  const double overlap_s = static_cast<double>(round.delay) * input.step_s;
  const auto longest = std::ranges::max_element(round.fragments, {}, &FragmentTime::in_flight_s);
  std::string text = absl::StrFormat(
      "the overlap: fragment_sync_delay %d gives an update %.3f s, and it takes up to %.3f s from send to ready.",
      round.delay, overlap_s, longest->in_flight_s);
  RoundTimeInput other = input;
  other.delay = LeastDelay(input);
  if (*other.delay == round.delay) {
    absl::StrAppend(&text, " No larger delay helps; more fragments or fewer bits a value would.");
  } else {
    absl::StrAppend(&text, absl::StrFormat(" With %d the utilization would be %.3f.", *other.delay,
                                           PredictRound(other).utilization));
  }
  return text;
}

// The least rate of the coordinator's link that costs the run (next to) nothing.
std::optional<double> HubRate(RoundTimeInput input) {
  input.waits = true;
  input.hub_link = {};
  if (!input.delay.has_value()) input.delay = input.sync_every - 1;
  const double best = PredictRound(input).utilization;
  return LeastRate(input, PlannedLink::kHub, best - kHubUnnoticed);
}

std::optional<double> SiteRate(RoundTimeInput input) {
  input.waits = true;
  return LeastRate(input, PlannedLink::kSite, kPlannedUtilization);
}

// The hub's link carries M payloads each way, a site's with shards at the sites 2 (M − 1)/M: so a hub that is M times
// as fast as the sites is the better one, and else the shards.
std::string PlacementAdvice(const RoundPlan& plan, double hub, double sites) {
  const bool at_sites = plan.input.shards_at_sites;
  const double best = std::max(hub, sites);
  const std::string both = absl::StrFormat("a hub: utilization %.3f; shards at the sites: %.3f.", hub, sites);
  if (plan.setting.sites < 2) return "one site: there is nothing to share.";
  if (best - std::min(hub, sites) < kNegligible) {
    return absl::StrCat(both, " As fast as each other: a hub is one process to keep",
                        at_sites ? "; placement: hub would do." : ".");
  }
  if (sites > hub && plan.setting.hub_link.up_bytes_per_s == kUnlimited) {
    return absl::StrCat(both, " A site's own part does not leave it.",
                        at_sites ? "" : " placement: sites is the better one.");
  }
  if (sites > hub) {
    return absl::StrFormat(
        "%s The coordinator's link is what a hub waits for: it carries %d payloads in each direction, a site's link "
        "with "
        "shards at the sites %.2f.%s",
        both, plan.setting.sites, 2.0 * (plan.setting.sites - 1) / plan.setting.sites,
        at_sites ? "" : " placement: sites is the better one.");
  }
  return absl::StrCat(both,
                      " The sites' links are what shards at the sites wait for: each carries its own part and the "
                      "others'.",
                      at_sites ? " placement: hub is the better one." : "");
}

}  // namespace

absl::StatusOr<RoundPlan> MakeRoundPlan(const core::RunConfig& config, const RoundSetting& setting) {
  RoundPlan plan{.config = config, .setting = setting};
  core::CodecConfig& codec = plan.config.codec;
  if (codec.sparse_down()) codec.down = core::SparseDown(codec.up, setting.sites);
  ASSIGN_OR_RETURN(plan.input, LoadInput(plan.config, setting));
  plan.round = PredictRound(plan.input);
  for (const FragmentTraffic& fragment : plan.input.fragments) plan.parameters += fragment.parameters;
  const bool residual = config.codec.feedback_down != 0;
  plan.state_bytes =
      static_cast<double>(plan.parameters) * (kStateBytesPerParameter + (residual ? kResidualBytesPerParameter : 0));
  if (plan.input.shards_at_sites) plan.state_bytes /= setting.sites;
  plan.contributions_bytes = kHeldShare * plan.round.contributions_bytes;
  plan.other_bytes = kOtherBytes;
  if (!plan.input.shards_at_sites) plan.hub_bytes_per_s = HubRate(plan.input);
  plan.site_bytes_per_s = SiteRate(plan.input);
  plan.bottleneck = Bottleneck(plan.input, plan.round);
  RoundTimeInput other = plan.input;
  other.shards_at_sites = !other.shards_at_sites;
  const double here = plan.round.utilization, there = PredictRound(other).utilization;
  plan.other_placement_utilization = there;
  plan.placement = plan.input.shards_at_sites ? PlacementAdvice(plan, there, here) : PlacementAdvice(plan, here, there);
  return plan;
}

absl::StatusOr<std::vector<SweepRow>> MakeSweep(const core::RunConfig& config, const RoundSetting& setting) {
  const int64_t given = config.sync.sync_every;
  std::vector<SweepRow> rows;
  for (int64_t sync_every : {given / 2, given, 2 * given, 4 * given}) {
    if (sync_every < config.sync.num_fragments) continue;
    for (core::CodecId codec : kSweptCodecs) {
      core::RunConfig swept = config;
      swept.sync.mode = core::SyncMode::kSynchronous;
      swept.sync.sync_every = sync_every;
      for (core::Step& offset : swept.sync.fragment_offsets) offset = offset * sync_every / given;
      swept.sync.fragment_sync_delay = core::kAutoDelay;
      swept.codec.up = swept.codec.down = codec;
      swept.codec.allow_up = swept.codec.allow_down = {};
      ASSIGN_OR_RETURN(RoundTimeInput input, LoadInput(swept, setting));
      const RoundTime best = PredictRound(input);
      SweepRow row{.sync_every = sync_every, .codec = codec, .least_delay = best.delay};
      row.bytes = std::max(best.up_bytes, best.down_bytes);
      row.site_bytes_per_s = row.bytes / best.compute_s;
      row.hub_bytes_per_s = row.site_bytes_per_s * setting.sites;
      for (int64_t delay : kSweepDelays) {
        if (delay >= sync_every) {
          row.utilization.push_back(std::nullopt);
          continue;
        }
        input.delay = delay;
        row.utilization.push_back(PredictRound(input).utilization);
      }
      row.best_utilization = best.utilization;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace causeway::plan
