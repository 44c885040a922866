// The options of a coordinator. Constant.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/clock.h"
#include "core/run_config.h"
#include "core/shard.h"
#include "server/run/model_bounds.h"
#include "server/status/status_board.h"

namespace causeway::server {

struct RunOptions {
  core::RunConfig config;
  std::string run_config;   // the same, serialized, for sites
  std::string config_json;  // the same, for /status
  const core::Clock* clock = &core::SystemClock();
  StatusBoard* board = nullptr;  // updated by Tick; outlives the coordinator; nullptr: no status
  // This coordinator's place among several; a shard beyond the first follows the one at `lead`.
  core::Shard shard;
  std::string lead;  // HOST:PORT, for messages
  // Checks that shard 0's serialized config equals this one's.
  std::function<absl::Status(const std::string& run_config)> check_config;
  ModelBounds bounds;
  bool new_run = false;  // sites of an unknown lineage are refused permanently, and do not hold up the seed
  std::optional<std::string> completed;  // how the state's lost end was made good; empty: not; nothing: not yet tried
};

}  // namespace causeway::server
