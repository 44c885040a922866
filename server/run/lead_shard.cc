#include "server/run/lead_shard.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/messages.h"

namespace causeway::server {

absl::Status CheckFollower(const v1::Context& context, const RunOptions& options) {
  const core::Shard shard{context.shard(), context.num_shards()};
  RETURN_IF_ERROR(transport::CheckCaller(context, options.config.run_id));
  const bool follows = shard.count == options.shard.count && shard.index >= 1 && shard.index < shard.count;
  if (options.shard.leads() && follows) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("expected a shard that follows shard 0, got ", shard.Text(), "; this is ", options.shard.Text()));
}

v1::MembershipUpdate LeadShard::MakeUpdate(const ModelFact& model) const {
  v1::MembershipUpdate update;
  update.set_run_id(options_.config.run_id);
  transport::ToProto(told_, &update);
  if (!model.known()) return update;
  update.set_generation(model.generation());
  transport::ToProto(model.map().manifest(), update.mutable_manifest());
  transport::ToProto(model.map(), update.mutable_fragments());
  return update;
}

void LeadShard::Note(const RunRules& rules, const ModelFact& model, Ready& ready) {
  if (options_.shard.alone()) return;
  core::Membership membership = rules.membership();
  if (membership == told_ && told_generation_ == model.generation()) return;
  told_ = std::move(membership);
  told_generation_ = model.generation();
  ready.state_changed = true;
  const auto update = std::make_shared<const v1::MembershipUpdate>(MakeUpdate(model));
  for (const auto& peer : followers_) ready.effects.emplace_back(effect::Tell{peer, update});
}

void LeadShard::Begin(const std::shared_ptr<ShardPeer>& peer, const RunRules& rules, const ModelFact& model,
                      Ready& ready) {
  Note(rules, model, ready);
  followers_.push_back(peer);
  const auto first = std::make_shared<v1::MembershipUpdate>(MakeUpdate(model));
  first->set_run_config(options_.run_config);
  ready.effects.emplace_back(effect::Tell{peer, first});
}

void LeadShard::End(const ShardPeer* peer) {
  std::erase_if(followers_, [peer](const auto& follower) { return follower.get() == peer; });
}

}  // namespace causeway::server
