// The part of Coordinator that keeps the shards of a run together: shard 0 sends its decisions, the others follow and
// report. The rules are in RoundTable.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/run/coordinator.h"
#include "transport/messages.h"
#include "transport/shard_messages.h"

namespace causeway::server {

absl::Status Coordinator::CheckOwned(core::FragmentId fragment) const {
  if (fragment < 0 || Owns(fragment)) return absl::OkStatus();  // the run's fragments are checked elsewhere
  return absl::InvalidArgumentError(absl::StrCat(
      "fragment ", fragment, " is of shard ", options_.shard.OwnerOf(fragment), ", this is ", options_.shard.Text()));
}

absl::Status Coordinator::CheckLeads(const std::string& what) const {
  if (options_.shard.leads()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": this is ", options_.shard.Text(), "; ask shard 0, at ", options_.lead));
}

// ---- Shard 0 ----

v1::MembershipUpdate Coordinator::MakeUpdate() const {
  v1::MembershipUpdate update;
  update.set_run_id(options_.config.run_id);
  transport::ToProto(membership_, &update);
  if (!model_.known()) return update;
  update.set_generation(model_.generation());
  transport::ToProto(model_.map().manifest(), update.mutable_manifest());
  transport::ToProto(model_.map(), update.mutable_fragments());
  return update;
}

// Sent when it is durable, like everything.
void Coordinator::NoteMembership() {
  if (rounds_->follows() || options_.shard.alone()) return;
  core::Membership membership = rounds_->membership();
  if (membership == membership_ && told_generation_ == model_.generation()) return;
  membership_ = std::move(membership);
  told_generation_ = model_.generation();
  outbox_.StateChanged();
  const auto update = std::make_shared<const v1::MembershipUpdate>(MakeUpdate());
  for (const auto& peer : followers_) outbox_.Then([peer, update] { peer->Send(*update); });
}

absl::Status Coordinator::BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer) {
  const core::Shard shard{context.shard(), context.num_shards()};
  if (context.protocol() != transport::kProtocol || context.run_id() != options_.config.run_id) {
    return absl::FailedPreconditionError(absl::StrCat("expected protocol ", transport::kProtocol, " and run ",
                                                      options_.config.run_id, ", got ", context.protocol(), " and ",
                                                      context.run_id()));
  }
  if (!options_.shard.leads() || shard.count != options_.shard.count || shard.index < 1 || shard.index >= shard.count) {
    return absl::FailedPreconditionError(
        absl::StrCat("what asks to follow is ", shard.Text(), ", this is ", options_.shard.Text()));
  }
  core::MutexLock lock(mutex_);
  spdlog::info("shard {} follows", shard.index);
  NoteMembership();
  followers_.push_back(peer);
  v1::MembershipUpdate first = MakeUpdate();
  first.set_run_config(options_.run_config);
  outbox_.Then([peer, first = std::move(first)] { peer->Send(first); });
  Publish();
  return absl::OkStatus();
}

void Coordinator::HeardOfShard(int shard, const v1::ShardReport& report) {
  shown_shards_.Heard(shard, report, options_.clock->NowMs());
  core::MutexLock lock(mutex_);
  // A report of an earlier generation may still be in flight.
  const bool of_this_model = !report.has_generation() || report.generation() >= model_.generation();
  Perform(rounds_->HeardOfShard(shard, {.seeded = report.seeded() && of_this_model,
                                        .versions = {report.versions().begin(), report.versions().end()},
                                        .stranded = report.stranded(),
                                        .stranded_stay = report.stranded_stay()}));
  Publish();
}

void Coordinator::EndFollow(const ShardPeer* peer) {
  core::MutexLock lock(mutex_);
  std::erase_if(followers_, [peer](const auto& follower) { return follower.get() == peer; });
}

// ---- The others ----

void Coordinator::NoteReport() {
  if (!rounds_->follows()) return;
  ShardReport report = rounds_->report();
  if (model_.known()) report.generation = model_.generation();
  if (report_.Note(report)) outbox_.Then([this, report] { report_.MakeDurable(report); });
}

void Coordinator::Follow(const v1::MembershipUpdate& update) {
  core::MutexLock lock(mutex_);
  Take(update);
}

void Coordinator::Take(const v1::MembershipUpdate& update) {
  if (const absl::Status status = TakeUpdate(update); !status.ok() && status_.ok()) status_ = status;
}

absl::Status Coordinator::TakeUpdate(const v1::MembershipUpdate& update) {
  if (update.run_id() != options_.config.run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard 0: expected run ", options_.config.run_id, ", got ", update.run_id()));
  }
  if (!update.run_config().empty() && options_.check_config) {
    RETURN_IF_ERROR(options_.check_config(update.run_config()));
  }
  ASSIGN_OR_RETURN(core::Membership membership, transport::FromProto(update));
  // A report without a number may refer to another model.
  const bool may_replace = !update.has_generation() || update.generation() > model_.generation();
  if (model_.state() == ModelState::kSaving && update.has_manifest() && may_replace) {
    late_update_ = update;  // complete, so that the last one is enough
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(FollowModel(update));
  if (membership != membership_) outbox_.StateChanged();
  membership_ = std::move(membership);
  Perform(rounds_->Follow(membership_, options_.clock->NowMs()));
  Publish();
  return absl::OkStatus();
}

// Sites that were welcomed to another model come back, and are welcomed to this one.
absl::Status Coordinator::FollowModel(const v1::MembershipUpdate& update) {
  std::optional<core::FragmentMap> map;
  if (update.has_manifest()) {
    ASSIGN_OR_RETURN(map, transport::FromProto(update.manifest(), update.fragments()));
    if (const int expected = options_.config.sync.map_fragments(); map->num_fragments() != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat("shard 0's model: expected ", expected, " fragments, got ", map->num_fragments()));
    }
  }
  const auto generation = update.has_generation() ? std::optional(update.generation()) : std::nullopt;
  const core::RoundState& state = rounds_->state();
  const bool trained = state.started || std::ranges::any_of(state.versions, [](auto version) { return version > 0; });
  const bool had_seed = model_.stays();
  ASSIGN_OR_RETURN(const bool another, model_.Follow(generation, map, trained));
  if (!another) return absl::OkStatus();
  spdlog::info("the model is generation {}, as shard 0 says", model_.generation());
  if (had_seed)
    outbox_.Note("withdrawn", "the initial parameters: shard 0 has another model, no site has trained this");
  NoteModel();
  BeginModel();
  rounds_->BeginAnotherModel();
  members_.CloseAll(outbox_);
  return absl::OkStatus();
}

}  // namespace causeway::server
