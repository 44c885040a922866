#include "worker/loop/follower.h"

#include <spdlog/spdlog.h>

#include "core/check.h"
#include "formats/run_yaml.h"
#include "worker/loop/ranked_trainer.h"

namespace causeway::worker {
namespace {

absl::StatusOr<std::unique_ptr<Trainer>> TrainerOf(const std::string& run_config, const core::SiteId& site,
                                                   const DeviceChoice& device, const TrainerFiles& files) {
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunConfig(run_config));
  return MakeSiteTrainer(device, config, site, files);
}

}  // namespace

absl::Status RunFollower(SiteRanks& ranks, const core::SiteId& site, const DeviceChoice& device, TrainerFiles files,
                         std::function<bool()> stop_requested) {
  RankControl& control = ranks.control();
  ASSIGN_OR_RETURN(const RankCommand run, control.Next());
  if (run.kind != RankCommand::Kind::kRun) return absl::InternalError("rank 0 has ended: " + run.payload);
  files.ranks = ranks.ForTrainer(std::move(stop_requested));
  const auto trainer = TrainerOf(run.payload, site, device, files);
  if (!trainer.ok()) {
    control.group().Abort(std::string(trainer.status().message()));
    return absl::InvalidArgumentError(trainer.status().message());  // whichever it is: a file that is not there, too
  }
  return FollowLeader(**trainer, control);
}

}  // namespace causeway::worker
