// A follower's process: a rank that knows no coordinator, and trains under the commands of rank 0.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "worker/loop/site_ranks.h"
#include "worker/loop/site_trainer.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

// Runs from the arrival of the run's config, which the leader sends, to the end of the run. `files` has no ranks.
// INVALID_ARGUMENT: this rank's data or flags do not fit; DATA_LOSS: a value is not finite; INTERNAL: a rank has
// failed, and which.
absl::Status RunFollower(SiteRanks& ranks, const core::SiteId& site, const DeviceChoice& device, TrainerFiles files,
                         std::function<bool()> stop_requested);

}  // namespace causeway::worker
