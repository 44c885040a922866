#include "server/run/follower_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "transport/messages.h"

namespace causeway::server {

void FollowerShard::Note(const RunRules& rules, const ModelFact& model, Ready& ready) {
  ShardReport report = rules.report();
  if (model.known()) report.generation = model.generation();
  if (report_.Note(report)) ready.effects.emplace_back(effect::Durable{report});
}

absl::StatusOr<FollowerShard::News> FollowerShard::Take(const v1::MembershipUpdate& update, const RunRules& rules,
                                                        ModelFact& model, Ready& ready) {
  if (update.run_id() != options_.config.run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard 0: expected run ", options_.config.run_id, ", got ", update.run_id()));
  }
  if (!update.run_config().empty() && options_.check_config) {
    RETURN_IF_ERROR(options_.check_config(update.run_config()));
  }
  ASSIGN_OR_RETURN(core::Membership membership, transport::FromProto(update));
  // A report without a number may refer to another model.
  const bool may_replace = !update.has_generation() || update.generation() > model.generation();
  if (model.state() == ModelState::kSaving && update.has_manifest() && may_replace) {
    late_ = update;  // complete, so that the last one is enough
    return News::kLater;
  }
  ASSIGN_OR_RETURN(const bool another, FollowModel(update, rules, model));
  if (membership != membership_) ready.state_changed = true;
  membership_ = std::move(membership);
  return another ? News::kAnotherModel : News::kMembership;
}

absl::StatusOr<bool> FollowerShard::FollowModel(const v1::MembershipUpdate& update, const RunRules& rules,
                                                ModelFact& model) const {
  std::optional<core::FragmentMap> map;
  if (update.has_manifest()) {
    ASSIGN_OR_RETURN(map, transport::FromProto(update.manifest(), update.fragments()));
    if (const int expected = options_.config.sync.map_fragments(); map->num_fragments() != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat("shard 0's model: expected ", expected, " fragments, got ", map->num_fragments()));
    }
  }
  const auto generation = update.has_generation() ? std::optional(update.generation()) : std::nullopt;
  const core::RoundState& state = rules.state();
  const bool trained = state.started || std::ranges::any_of(state.versions, [](auto version) { return version > 0; });
  return model.Follow(generation, map, trained);
}

}  // namespace causeway::server
