// Shard 0's word to the others: which sites are in, and which model the run has. Sent when it is durable, like
// everything. One owner at a time.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/membership.h"
#include "server/rounds/model_fact.h"
#include "server/rounds/run_rules.h"
#include "server/run/ready.h"
#include "server/run/run_options.h"

namespace causeway::server {

// FAILED_PRECONDITION if the caller is no other shard of this run, or this one is not shard 0.
absl::Status CheckFollower(const v1::Context& context, const RunOptions& options);

class LeadShard {
 public:
  explicit LeadShard(const RunOptions& options) : options_(options) {}

  void Begin(const std::shared_ptr<ShardPeer>& peer, const RunRules& rules, const ModelFact& model, Ready& ready);
  void End(const ShardPeer* peer);
  // Tells the followers, if there is news.
  void Note(const RunRules& rules, const ModelFact& model, Ready& ready);

 private:
  v1::MembershipUpdate MakeUpdate(const ModelFact& model) const;

  const RunOptions& options_;
  std::vector<std::shared_ptr<ShardPeer>> followers_;
  core::Membership told_;
  uint64_t told_generation_ = 0;  // the model's generation in the last update
};

}  // namespace causeway::server
