#include "server/run/shards.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/run_yaml.h"
#include "server/run/run_parts.h"
#include "transport/messages.h"

namespace causeway::server {

// ---- Reports ----

bool OwnReport::Note(const ShardReport& report) {
  const core::MutexLock lock(mutex_);
  if (report == noted_) return false;
  noted_ = report;
  return true;
}

void OwnReport::MakeDurable(const ShardReport& report) {
  const core::MutexLock lock(mutex_);
  durable_ = report;
}

void OwnReport::MakeNotedDurable() {
  const core::MutexLock lock(mutex_);
  durable_ = noted_;
}

void OwnReport::Show(const StatusSnapshot& snapshot) {
  v1::ShardReport shown;
  for (const FragmentStatus& fragment : snapshot.fragments) {
    v1::ShardFragment& message = *shown.add_fragments();
    message.set_fragment(fragment.id);
    message.set_version(fragment.committed.version);
    message.set_digest(fragment.committed.digest);
    message.set_state(fragment.state);
    message.set_reason(fragment.reason);
    message.mutable_contributors()->Assign(fragment.contributors.begin(), fragment.contributors.end());
  }
  for (const SiteStatus& site : snapshot.sites) {
    v1::ShardTraffic& message = *shown.add_traffic();
    message.set_site(site.name);
    message.set_up_bytes(site.up_bytes);
    message.set_down_bytes(site.down_bytes);
    message.set_up_bytes_per_s(site.up_bytes_per_s);
    message.set_down_bytes_per_s(site.down_bytes_per_s);
  }
  const core::MutexLock lock(mutex_);
  shown_ = std::move(shown);
}

v1::ShardReport OwnReport::Message() const {
  const core::MutexLock lock(mutex_);
  v1::ShardReport message = shown_;
  message.set_seeded(durable_.seeded);
  message.mutable_versions()->Assign(durable_.versions.begin(), durable_.versions.end());
  message.set_stranded(durable_.stranded);
  message.set_stranded_stay(durable_.stranded_stay);
  if (durable_.generation) message.set_generation(*durable_.generation);
  return message;
}

void ShownShards::Heard(int shard, const v1::ShardReport& report, int64_t now_ms) { shards_[shard] = {report, now_ms}; }

std::vector<AwayShard> ShownShards::Away(const core::Shard& own, int64_t began_ms, int64_t now_ms) const {
  std::vector<AwayShard> away;
  for (int shard = 1; own.leads() && shard < own.count; ++shard) {
    const auto found = shards_.find(shard);
    const int64_t silent_ms = now_ms - (found == shards_.end() ? began_ms : found->second.heard_ms);
    if (silent_ms > kAwayMs) away.push_back({shard, static_cast<double>(silent_ms) * 1e-3});
  }
  return away;
}

void ShownShards::AddTo(const core::FragmentMap& map, const core::Shard& own, int64_t now_ms,
                        StatusSnapshot* snapshot) const {
  for (int shard = 1; shard < own.count; ++shard) {
    const auto found = shards_.find(shard);
    if (found == shards_.end()) continue;
    const auto& [report, heard_ms] = found->second;
    for (const v1::ShardTraffic& traffic : report.traffic()) {
      const auto site = std::ranges::find(snapshot->sites, traffic.site(), &SiteStatus::name);
      if (site == snapshot->sites.end()) continue;
      site->up_bytes += traffic.up_bytes();
      site->down_bytes += traffic.down_bytes();
      site->up_bytes_per_s += traffic.up_bytes_per_s();
      site->down_bytes_per_s += traffic.down_bytes_per_s();
    }
    const bool away = now_ms - heard_ms > kAwayMs;
    for (const v1::ShardFragment& fragment : report.fragments()) {
      if (fragment.fragment() >= map.num_fragments() || own.OwnerOf(fragment.fragment()) != shard) continue;
      FragmentStatus& status = snapshot->fragments.emplace_back();
      status.id = fragment.fragment();
      status.parameters = map.fragment(status.id).parameters;
      status.committed = {fragment.version(), fragment.digest()};
      status.state = fragment.state();
      status.reason = away ? absl::StrCat("shard ", shard, " has not been heard of for ", (now_ms - heard_ms) / 1000,
                                          " s; its fragments wait for it")
                           : fragment.reason();
      status.contributors.assign(fragment.contributors().begin(), fragment.contributors().end());
    }
  }
  std::ranges::sort(snapshot->fragments, {}, &FragmentStatus::id);
}

// ---- Shard 0 ----

v1::MembershipUpdate LeadShard::MakeUpdate(const RunParts& run) const {
  const ModelFact& model = run.model.fact();
  v1::MembershipUpdate update;
  update.set_run_id(run.options.config.run_id);
  transport::ToProto(told_, &update);
  if (!model.known()) return update;
  update.set_generation(model.generation());
  transport::ToProto(model.map().manifest(), update.mutable_manifest());
  transport::ToProto(model.map(), update.mutable_fragments());
  return update;
}

void LeadShard::Note(RunParts& run) {
  if (run.options.shard.alone()) return;
  core::Membership membership = run.rules->membership();
  if (membership == told_ && told_generation_ == run.model.fact().generation()) return;
  told_ = std::move(membership);
  told_generation_ = run.model.fact().generation();
  run.ready.state_changed = true;
  const auto update = std::make_shared<const v1::MembershipUpdate>(MakeUpdate(run));
  for (const auto& peer : followers_) run.ready.effects.emplace_back(effect::Tell{peer, update});
}

void LeadShard::Begin(const std::shared_ptr<ShardPeer>& peer, RunParts& run) {
  Note(run);
  followers_.push_back(peer);
  const auto first = std::make_shared<v1::MembershipUpdate>(MakeUpdate(run));
  first->set_run_config(run.options.run_config);
  run.ready.effects.emplace_back(effect::Tell{peer, first});
}

void LeadShard::End(const ShardPeer* peer) {
  std::erase_if(followers_, [peer](const auto& follower) { return follower.get() == peer; });
}

absl::Status Handle(RunParts& run, const input::BeginFollow& input, int64_t) {
  const core::Shard shard{input.context.shard(), input.context.num_shards()};
  const core::Shard& own = run.options.shard;
  RETURN_IF_ERROR(transport::CheckCaller(input.context, run.options.config.run_id));
  if (!own.leads() || shard.count != own.count || shard.index < 1 || shard.index >= shard.count) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a shard that follows shard 0, got ", shard.Text(), "; this is ", own.Text()));
  }
  spdlog::info("shard {} follows", shard.index);
  run.lead()->Begin(input.peer, run);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::EndFollow& input, int64_t) {
  if (run.lead() != nullptr) run.lead()->End(input.peer);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Report& input, int64_t now_ms) {
  // A report of an earlier generation may still be in flight.
  const v1::ShardReport& report = input.report;
  run.lead()->shown.Heard(input.shard, report, now_ms);
  const bool of_this_model = !report.has_generation() || report.generation() >= run.model.fact().generation();
  const ShardReport heard{.seeded = report.seeded() && of_this_model,
                          .versions = {report.versions().begin(), report.versions().end()},
                          .stranded = report.stranded(),
                          .stranded_stay = report.stranded_stay()};
  Apply(run, ShardReported{input.shard, heard}, now_ms);
  return absl::OkStatus();
}

// ---- The others ----

namespace {

// Whether shard 0 merges by the same config.
absl::Status CheckShardConfig(const std::string& lead, const core::RunConfig& own) {
  ASSIGN_OR_RETURN(const core::RunConfig expected, formats::ParseRunConfig(lead));
  const std::string difference = formats::ShardConfigDifference(expected, own);
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("--config differs from that of shard 0: ", difference));
}

// Whether the model has changed.
absl::StatusOr<bool> FollowModel(const v1::MembershipUpdate& update, RunParts& run) {
  std::optional<core::FragmentMap> map;
  if (update.has_manifest()) {
    ASSIGN_OR_RETURN(map, transport::FromProto(update.manifest(), update.fragments()));
    if (const int expected = run.options.config.sync.map_fragments(); map->num_fragments() != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat("shard 0's model: expected ", expected, " fragments, got ", map->num_fragments()));
    }
  }
  const core::RoundState& state = run.rules->state();
  const bool trained = state.started || std::ranges::any_of(state.versions, [](auto version) { return version > 0; });
  return run.model.fact().Follow(GenerationOf(update), map, trained);
}

}  // namespace

void FollowerShard::Note(RunParts& run) {
  ShardReport report = run.rules->report();
  if (run.model.fact().known()) report.generation = run.model.fact().generation();
  if (run.durable.report.Note(report)) run.ready.effects.emplace_back(effect::Durable{report});
}

absl::StatusOr<FollowerShard::News> FollowerShard::Take(const v1::MembershipUpdate& update, RunParts& run) {
  if (update.run_id() != run.options.config.run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard 0: expected run ", run.options.config.run_id, ", got ", update.run_id()));
  }
  if (!update.run_config().empty()) RETURN_IF_ERROR(CheckShardConfig(update.run_config(), run.options.config));
  ASSIGN_OR_RETURN(core::Membership membership, transport::FromProto(update));
  // A report without a number may refer to another model.
  const ModelFact& model = run.model.fact();
  const bool may_replace = !update.has_generation() || update.generation() > model.generation();
  if (model.state() == ModelState::kSaving && update.has_manifest() && may_replace) {
    late_ = update;  // complete, so that the last one is enough
    return News::kLater;
  }
  ASSIGN_OR_RETURN(const bool another, FollowModel(update, run));
  if (membership != membership_) run.ready.state_changed = true;
  membership_ = std::move(membership);
  return another ? News::kAnotherModel : News::kMembership;
}

absl::Status Handle(RunParts& run, const input::Membership& input, int64_t now_ms) {
  const bool had_seed = run.model.fact().stays();
  ASSIGN_OR_RETURN(const FollowerShard::News news, run.follower()->Take(input.update, run));
  if (news == FollowerShard::News::kLater) return absl::OkStatus();
  if (news == FollowerShard::News::kAnotherModel) {
    spdlog::info("the model is generation {}, as shard 0 says", run.model.fact().generation());
    if (had_seed) {
      run.ready.Note("withdrawn", "the initial parameters: shard 0 has another model, no site has trained this");
    }
    run.model.Store(run.ready);
    BeginModel(run);
    run.rules->Handle(ModelReplaced{}, now_ms);
    run.members.CloseAll(run.ready);  // sites welcomed to another model come back, and are welcomed to this one
  }
  Apply(run, MembershipChanged{run.follower()->membership()}, now_ms);
  return absl::OkStatus();
}

}  // namespace causeway::server
