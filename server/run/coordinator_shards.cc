// The part of Coordinator that keeps the shards of a run together.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/run/coordinator.h"

namespace causeway::server {

absl::Status Coordinator::CheckOwned(core::FragmentId fragment) const {
  if (fragment < 0 || Owns(fragment)) return absl::OkStatus();  // the run's fragments are checked elsewhere
  return absl::InvalidArgumentError(absl::StrCat(
      "fragment ", fragment, " is of shard ", options_.shard.OwnerOf(fragment), ", this is ", options_.shard.Text()));
}

absl::Status Coordinator::BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer) {
  RETURN_IF_ERROR(CheckFollower(context, options_));
  core::MutexLock lock(mutex_);
  spdlog::info("shard {} follows", context.shard());
  run_.lead()->Begin(peer, *run_.rounds, run_.model.fact(), run_.outbox);
  run_.Publish();
  return absl::OkStatus();
}

void Coordinator::HeardOfShard(int shard, const v1::ShardReport& report) {
  shown_shards_.Heard(shard, report, options_.clock->NowMs());
  core::MutexLock lock(mutex_);
  // A report of an earlier generation may still be in flight.
  const bool of_this_model = !report.has_generation() || report.generation() >= run_.model.fact().generation();
  run_.Perform(run_.rounds->HeardOfShard(shard, {.seeded = report.seeded() && of_this_model,
                                                 .versions = {report.versions().begin(), report.versions().end()},
                                                 .stranded = report.stranded(),
                                                 .stranded_stay = report.stranded_stay()}));
  run_.Publish();
}

void Coordinator::EndFollow(const ShardPeer* peer) {
  core::MutexLock lock(mutex_);
  run_.lead()->End(peer);
}

void Coordinator::Follow(const v1::MembershipUpdate& update) {
  core::MutexLock lock(mutex_);
  Take(update);
}

void Coordinator::Take(const v1::MembershipUpdate& update) {
  const bool had_seed = run_.model.fact().stays();
  const absl::StatusOr<FollowerShard::News> news =
      run_.follower()->Take(update, *run_.rounds, run_.model.fact(), run_.outbox);
  if (!news.ok() && status_.ok()) status_ = news.status();
  if (!news.ok() || *news == FollowerShard::News::kLater) return;
  if (*news == FollowerShard::News::kAnotherModel) {
    spdlog::info("the model is generation {}, as shard 0 says", run_.model.fact().generation());
    if (had_seed) {
      run_.outbox.Note("withdrawn", "the initial parameters: shard 0 has another model, no site has trained this");
    }
    run_.model.Store(run_.outbox);
    run_.BeginModel();
    run_.rounds->BeginAnotherModel();
    run_.members.CloseAll(
        run_.outbox);  // sites that were welcomed to another model come back, and are welcomed to this one
  }
  run_.Perform(run_.rounds->Follow(run_.follower()->membership(), options_.clock->NowMs()));
  run_.Publish();
}

}  // namespace causeway::server
