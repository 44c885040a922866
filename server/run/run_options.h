// The options of a coordinator. Constant.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/ids.h"
#include "core/run_config.h"
#include "server/run/model_bounds.h"
#include "server/status/status_board.h"

namespace causeway::server {

// Conversions of a run's settings, which formats/ implements.
struct SettingsForms {
  struct Changed {
    core::RunConfig config;
    std::string run_config;            // serialized
    std::vector<std::string> changes;  // "inner.lr: 0.003 → 0.0001"; empty: nothing differs
    std::vector<std::string> at_once;  // the changed keys that take effect at once
  };
  using Changes = std::vector<std::pair<std::string, std::string>>;  // keys and values, as typed
  std::function<absl::StatusOr<Changed>(const core::RunConfig& now, const Changes& changes)> change;
  // Applies to `now` the changes that lead from `before` to `after`.
  std::function<absl::StatusOr<Changed>(const core::RunConfig& before, const core::RunConfig& after,
                                        const core::RunConfig& now)>
      rebase;
  std::function<absl::StatusOr<core::RunConfig>(const std::string& run_config)> read;
  std::function<std::string(const core::RunConfig& config)> json;
};

struct RunOptions {
  core::RunConfig config;
  std::string run_config;   // `config`, serialized, for sites
  std::string config_json;  // `config` as JSON, for /status
  std::string grpc, http;   // HOST:PORT where it listens, for the page and for sites
  SettingsForms settings;   // without them the settings cannot change
  const core::Clock* clock = &core::SystemClock();
  StatusBoard* board = nullptr;  // updated by Tick; outlives the coordinator; nullptr: no status
  // This coordinator's place among several; a shard beyond the first follows the one at `lead`.
  core::Shard shard;
  std::string lead;  // HOST:PORT, for error messages
  // Checks that shard 0's serialized config equals this one's.
  std::function<absl::Status(const std::string& run_config)> check_config;
  ModelBounds bounds;
  bool new_run = false;  // sites of an unknown lineage are refused permanently, and do not hold up the seed
  std::optional<std::string> completed;  // how the state's lost end was restored; empty: not; nullopt: not yet tried
};

}  // namespace causeway::server
