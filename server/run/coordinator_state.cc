// The part of Coordinator that keeps the run's state: restores, saves and shows it.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "server/run/coordinator.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

RoundRules RulesOf(const core::RunConfig& config, core::Shard shard) {
  return {config.sync, config.membership, shard, config.values,
          [config](const core::SiteId& site) { return config.MaxTokensPerStep(site); }};
}

}  // namespace

absl::Status Coordinator::Restore(StoredRun stored) {
  core::MutexLock lock(mutex_);
  const core::RunConfig& config = options_.config;
  evaluations_.Restore(stored.eval_loss);
  admission_.RestoreData(stored.data);
  members_.Restore(stored.rounds, started_ms_);
  const bool seeded = stored.rounds.seeded;
  if (const ModelRecord& model = stored.model; model.generation > 0) {
    auto map = core::FragmentMap::FromParts(model.run.manifest, model.run.tensors_of_fragment);
    model_.Restore(ModelFact(model.generation, std::move(map), seeded, model.seeder));
    BeginModel();
  }
  rounds_ = std::make_unique<RoundTable>(RulesOf(config, options_.shard), std::move(stored.rounds), started_ms_,
                                         model_.fact().seeder());
  outbox_.Note("start", absl::StrCat("epoch ", journal_->epoch()));
  for (const std::string& repaired : journal_->repaired()) {
    spdlog::warn("{}", repaired);
    outbox_.Note("repair", repaired);
  }
  Publish();
  report_.MakeNotedDurable();
  if (!seeded) return absl::OkStatus();
  if (!model_.fact().known() || std::ssize(stored.fragments) != open_.num_fragments()) {
    return absl::DataLossError(
        absl::StrCat("stored state: expected ", open_.num_fragments(), " fragments, found ", stored.fragments.size()));
  }
  std::vector<StartingFragment> fragments;
  for (size_t p = 0; p < stored.fragments.size(); ++p) {
    const StoredFragment& fragment = stored.fragments[p];
    const auto id = static_cast<core::FragmentId>(p);
    if (!Owns(id)) {
      fragments.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(core::FragmentState state, journal_->LoadSnapshot(id, fragment.snapshot));
    const uint64_t digest = state.Digest();
    fragments.push_back(
        {.state = std::move(state), .digest = digest, .up = fragment.snapshot_up, .updates = fragment.updates});
    std::optional<core::CodecId> up = fragment.snapshot_up;
    if (!fragment.to_replay.empty()) {
      const std::optional<RoundCodecs>& last = fragment.to_replay.back().record.codecs;
      up = last ? std::optional(last->next_up) : std::nullopt;
    }
    codecs_.Restore(id, up);
    RETURN_IF_ERROR(open_.Restore(id, fragment.open, rounds_->state(), started_ms_));
  }
  model_.parameters()->Set(std::move(fragments));
  model_.MergeAgain(stored.fragments, codecs_);
  return absl::OkStatus();
}

void Coordinator::Fail(const absl::Status& status) {
  core::MutexLock lock(mutex_);
  if (status_.ok()) status_ = status;
}

absl::Status Coordinator::status() const {
  if (absl::Status status = journal_->status(); !status.ok()) return status;
  core::MutexLock lock(mutex_);
  return status_;
}

void Coordinator::Tick() {
  constexpr int64_t kSampleMs = 250;
  {
    core::MutexLock lock(mutex_);
    const int64_t now_ms = options_.clock->NowMs();
    RunParts parts = Parts();
    stalls_.Tick(now_ms, parts);
    Perform(rounds_->Tick(now_ms));
    Publish();
    if (now_ms < sampled_ms_ + kSampleMs) return;
    sampled_ms_ = now_ms;
    members_.Sample(now_ms);
  }
  PublishStatus();
}

absl::Status Coordinator::Finish() {
  journal_->Flush();  // rounds decided last are merged now
  if (model_.parameters() != nullptr) RETURN_IF_ERROR(model_.parameters()->Finish());
  journal_->Flush();
  return status();
}

bool Coordinator::lacks_its_end() const {
  if (options_.completed || !journal_->identity().may_have_lost_its_end) return false;
  core::MutexLock lock(mutex_);
  return admission_.strangers().MissesAnEnd();
}

bool Coordinator::done() const {
  {
    core::MutexLock lock(mutex_);
    if (rounds_->run_state() != RunState::kDone) return false;
  }
  journal_->Flush();  // the others are notified once it is durable
  return true;
}

absl::StatusOr<std::vector<Event>> Coordinator::History(int64_t after_id, int64_t limit,
                                                        const std::string& kind) const {
  return journal_->History(after_id, limit, kind);
}

absl::Status Coordinator::Ask(const std::function<absl::Status(RunParts&, Actions&)>& event) {
  {
    core::MutexLock lock(mutex_);
    RunParts parts = Parts();
    Actions actions;
    RETURN_IF_ERROR(event(parts, actions));
    Perform(actions);
    Publish();
  }
  journal_->Flush();
  return status();
}

absl::StatusOr<int> Coordinator::NumSeededFragments() const {
  core::MutexLock lock(mutex_);
  if (!model_.fact().stays()) return absl::FailedPreconditionError("the run has no parameters yet");
  return model_.fact().map().num_fragments();
}

}  // namespace causeway::server
