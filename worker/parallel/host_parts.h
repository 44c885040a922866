// A rank's tensors, optimizer and stages on the processor, and the partition of a run that divides them.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/link_levels.h"
#include "core/run_config.h"
#include "offload/bus_schedule.h"
#include "worker/parallel/level_shards.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/rank_parts.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

struct Partition {
  core::LinkLevels levels;
  PartitionLevels at;
};

// nullopt: no state is divided. INVALID_ARGUMENT: the optimizer cannot be divided, or the levels have other ranks.
absl::StatusOr<std::optional<Partition>> ReadPartition(const core::RunConfig& config, const TrainerFiles& files);

// `bus` outlives the parts. Every rank calls it.
absl::StatusOr<RankParts> OpenHostParts(const core::RunConfig& config, const StagesRequest& request,
                                        const std::optional<Partition>& partition, const TrainerRanks& ranks,
                                        const std::string& calibration_path, offload::BusSchedule& bus);

}  // namespace causeway::worker
