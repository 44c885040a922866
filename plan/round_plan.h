// causewayctl plan: predicts a run's load on its links before it is started.
//
//   run.yaml ─► fragment map, chunks of each leg ─┐
//   links, step time, number of sites ────────────┴─► PredictRound ─► RoundPlan ─► text, JSON (ctl/round_command.h)
//
// Bytes are exact: those of the chunks that a site sends and gets. Times are predictions. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "plan/round_time.h"

namespace causeway::plan {

// The input of a plan besides the config. Rates are those of the wire.
struct RoundSetting {
  int sites = 1;
  double step_s = 0;
  double round_trip_s = 0;
  LinkRate site_link, hub_link;
  double payload_share = kPayloadShare;
  double codec_s_per_value = 0;
  double merge_s_per_value = 0;
  core::Manifest manifest;  // the model's manifest in a run whose sites bring the model
};

struct RoundPlan {
  core::RunConfig config;  // with `down: sparse`, its codec.down is the one for contributions of all sites
  RoundSetting setting;
  RoundTimeInput input;
  RoundTime round;
  int64_t parameters = 0;
  // Memory of the coordinator, or of each shard at a site: parameters with momentum (and residual), contributions held
  // at once, everything else.
  double state_bytes = 0, contributions_bytes = 0, other_bytes = 0;
  // Required wire rates, equal in both directions: for the coordinator's link, so that it costs the run nothing; for a
  // site's link, to reach kPlannedUtilization with the coordinator's link as it is. None: no rate suffices, because
  // other parts take longer.
  std::optional<double> hub_bytes_per_s, site_bytes_per_s;
  double other_placement_utilization = 0;  // with a hub if the config has shards at the sites, and vice versa
  std::string placement;                   // which of the two placements is better, and why, in sentences
  std::string bottleneck;                  // the bottleneck of the sites, and its remedy, in sentences

  double memory_bytes() const { return state_bytes + contributions_bytes + other_bytes; }
};

inline constexpr double kPlannedUtilization = 0.99;

// INVALID_ARGUMENT if the config's fragments do not fit its model.
absl::StatusOr<RoundPlan> MakeRoundPlan(const core::RunConfig& config, const RoundSetting& setting);

// One row of a sweep: the config with another H and codec on both legs.
struct SweepRow {
  int64_t sync_every = 0;
  core::CodecId codec = core::CodecId::kFloat32;
  double bytes = 0;             // bytes of one site in a round, on the larger leg
  double site_bytes_per_s = 0;  // payload rate of a site, where nothing stalls
  double hub_bytes_per_s = 0;   // M times that
  // For each of kSweepDelays; none where the delay is not below H.
  std::vector<std::optional<double>> utilization;
  double best_utilization = 0;  // the utilization with `least_delay`, the least delay that reaches it
  int64_t least_delay = 0;
};
inline constexpr int64_t kSweepDelays[] = {0, 1, 5};

// H: a half, one, two and four times the config's, as far as fragments fit; codecs: those that both legs take.
absl::StatusOr<std::vector<SweepRow>> MakeSweep(const core::RunConfig& config, const RoundSetting& setting);

}  // namespace causeway::plan
