// The streams between the shards of a run. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.pb.h"
#include "server/run/lead_shard.h"
#include "server/run/run_options.h"
#include "server/run/shard_reports.h"

namespace causeway::server {

class RunExchange;

class ShardCalls {
 public:
  // All outlive it.
  ShardCalls(RunExchange& exchange, const RunOptions& options, const OwnReport& report, ShownShards& shown)
      : exchange_(exchange), options_(options), report_(report), shown_(shown) {}

  // Shard 0: the other shards' streams. FAILED_PRECONDITION if the caller is no shard of this run.
  absl::Status BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer);
  void HeardOfShard(int shard, const v1::ShardReport& report);
  void EndFollow(const ShardPeer* peer);

  // A shard beyond the first: updates from shard 0, and the report to it. A report contains only durable facts.
  void Follow(const v1::MembershipUpdate& update);
  v1::ShardReport Report() const { return report_.Message(); }

 private:
  RunExchange& exchange_;
  const RunOptions& options_;
  const OwnReport& report_;
  ShownShards& shown_;
};

}  // namespace causeway::server
