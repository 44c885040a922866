// What the coordinator shows of itself: plain values, copied out under its lock once, rendered without it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/membership.h"
#include "core/run_config.h"
#include "core/shard.h"

namespace causeway::server {

struct SiteStatus {
  core::SiteId name;
  core::SiteState state = core::SiteState::kGone;
  std::string reason;
  core::Progress progress;
  int64_t up_bytes = 0;
  int64_t down_bytes = 0;
  double up_bytes_per_s = 0;
  double down_bytes_per_s = 0;
  double merged_weight = 0;  // mean of its share of a round's weight, over the rounds since the coordinator's start
};

struct FragmentStatus {
  core::FragmentId id = 0;
  int64_t parameters = 0;
  core::AnchorDigest committed;
  std::string state;  // idle | open | grace | merging
  std::string reason;
  std::vector<core::SiteId> contributors;  // to the open round
};

struct StatusSnapshot {
  core::RunId run_id;
  uint32_t protocol = 0;
  uint64_t epoch = 0;
  core::Shard shard;
  std::string state;
  std::string reason;
  double uptime_s = 0;
  int64_t parameters = 0;
  core::CodecConfig codec;                         // up and down as they are now
  std::string codec_reason_up, codec_reason_down;  // of those, where they are chosen
  std::string config_json;
  std::optional<double> eval_loss_start;
  std::optional<double> eval_loss_latest;
  std::vector<core::Version> eval_loss_versions;
  std::vector<SiteStatus> sites;
  std::vector<FragmentStatus> fragments;  // of the shard
};

// The JSON of GET /status (INTERFACE: docs/operating the fields); numbers that are not finite are null. Thread-safe.
std::string StatusJson(const StatusSnapshot& snapshot);

}  // namespace causeway::server
