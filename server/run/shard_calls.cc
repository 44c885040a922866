#include "server/run/shard_calls.h"

#include <spdlog/spdlog.h>

#include "core/check.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

absl::Status ShardCalls::BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer) {
  RETURN_IF_ERROR(CheckFollower(context, options_));
  exchange_.With([&](Run& run) {
    spdlog::info("shard {} follows", context.shard());
    run.lead()->Begin(peer, *run.rules, run.model.fact(), run.outbox);
    run.Publish();
  });
  return absl::OkStatus();
}

void ShardCalls::HeardOfShard(int shard, const v1::ShardReport& report) {
  shown_.Heard(shard, report, options_.clock->NowMs());
  exchange_.With([&](Run& run) {
    // A report of an earlier generation may still be in flight.
    const bool of_this_model = !report.has_generation() || report.generation() >= run.model.fact().generation();
    const ShardReport heard{.seeded = report.seeded() && of_this_model,
                            .versions = {report.versions().begin(), report.versions().end()},
                            .stranded = report.stranded(),
                            .stranded_stay = report.stranded_stay()};
    run.Apply(ShardReported{shard, heard}, options_.clock->NowMs());
    run.Publish();
  });
}

void ShardCalls::EndFollow(const ShardPeer* peer) {
  exchange_.With([&](Run& run) { run.lead()->End(peer); });
}

void ShardCalls::Follow(const v1::MembershipUpdate& update) {
  const absl::Status followed = exchange_.With([&](Run& run) { return run.Follow(update, options_.clock->NowMs()); });
  if (!followed.ok()) exchange_.Fail(followed);
}

}  // namespace causeway::server
