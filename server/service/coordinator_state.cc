// The part of Coordinator that keeps the run's state: restoring, saving, showing it.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "server/service/coordinator.h"
#include "transport/messages.h"

namespace causeway::server {

absl::Status Coordinator::Restore(SavedState saved) {
  core::MutexLock lock(mutex_);
  epoch_ = saved.epoch + 1;
  lineage_ = saved.lineage;
  eval_loss_ = saved.eval_loss;
  for (const auto& [site, record] : saved.rounds.sites) members_[site].session = record.session;
  if (!saved.manifest.empty()) SetMap(core::FragmentMap(saved.manifest, saved.tensors_of_fragment));
  const core::RunConfig& config = options_.config;
  const bool seeded = saved.rounds.seeded;
  rounds_ = std::make_unique<RoundTable>(
      RoundRules{config.sync.Schedule(), config.membership.min_sites, config.membership.lease_ms},
      std::move(saved.rounds), started_ms_);
  if (!seeded) return absl::OkStatus();
  if (!map_ || saved.fragments.size() != open_.size()) {
    return absl::DataLossError(
        absl::StrCat("saved state: expected ", open_.size(), " fragments, found ", saved.fragments.size()));
  }
  for (size_t p = 0; p < saved.fragments.size(); ++p) {
    const auto plan = codecs::PlanChunks(map_->fragment(p), codecs::UpLeg(config));
    for (auto& [site, chunks] : saved.fragments[p].contributions) {
      auto contribution = std::make_shared<Contribution>(plan);
      const bool valid =
          std::ranges::all_of(chunks, [&](const ChunkPtr& chunk) { return contribution->Add(*chunk).ok(); });
      if (!valid || !contribution->complete()) {
        return absl::DataLossError(
            absl::StrCat("saved state: the contribution of ", site, " to fragment ", p, " is not whole"));
      }
      open_[p][site] = std::move(contribution);
    }
  }
  saved_round_ = *std::min_element(rounds_->state().versions.begin(), rounds_->state().versions.end());
  parameters_->Set(std::move(saved.fragments));
  return absl::OkStatus();
}

void Coordinator::OnMerged(core::FragmentId fragment, core::AnchorDigest committed) {
  spdlog::info("fragment {}: version {}, digest {}", fragment, committed.version, core::DigestText(committed.digest));
  std::optional<SavedState> state;
  {
    core::MutexLock lock(mutex_);
    const auto& versions = rounds_->state().versions;
    const core::Version rounds = *std::min_element(versions.begin(), versions.end());
    const int64_t every = options_.config.checkpoint.every_rounds;
    if (every == 0 || rounds < saved_round_ + every) return;
    state = CaptureState();
    if (!state) return;  // more rounds are decided already: after the last of them
    saved_round_ = rounds;
  }
  const absl::Status status = store_->Save(*state, options_.config.checkpoint.keep);
  if (!status.ok()) spdlog::error("cannot save the state, going on without: {}", status.ToString());
}

std::optional<SavedState> Coordinator::CaptureState() const {
  SavedState state{.run_config = options_.run_config, .epoch = epoch_, .lineage = lineage_, .eval_loss = eval_loss_};
  state.rounds = rounds_->state();
  if (!map_) return state;
  state.manifest = map_->manifest();
  for (const core::Fragment& fragment : map_->fragments()) {
    auto& tensors = state.tensors_of_fragment.emplace_back();
    for (const core::TensorPlace& place : fragment.tensors) tensors.push_back(place.tensor);
  }
  if (!state.rounds.seeded) return state;
  auto fragments = parameters_->Save();
  if (!fragments) return std::nullopt;
  state.fragments = *std::move(fragments);
  for (size_t p = 0; p < open_.size(); ++p) {
    for (const auto& [site, admitted] : state.rounds.contributions[p]) {
      auto& chunks = state.fragments[p].contributions[site];
      for (const std::string& chunk : open_[p].at(site)->chunks()) {
        chunks.push_back(ChunkPtr(open_[p].at(site), &chunk));  // shares the contribution's life
      }
    }
  }
  return state;
}

void Coordinator::Tick() {
  core::MutexLock lock(mutex_);
  const int64_t now_ms = options_.now_ms();
  for (auto& [site, member] : members_) {
    member.meters->up.Sample(now_ms);
    member.meters->down.Sample(now_ms);
  }
  Perform(rounds_->Tick(now_ms));
  NoteReasons();
}

absl::Status Coordinator::Finish() {
  if (parameters_ != nullptr) parameters_->Finish();
  std::optional<SavedState> state;
  {
    core::MutexLock lock(mutex_);
    state = CaptureState();
  }
  CHECK(state.has_value());
  return store_->Save(*state, options_.config.checkpoint.keep);
}

bool Coordinator::done() const {
  core::MutexLock lock(mutex_);
  return rounds_->run_state() == RunState::kDone;
}

absl::Status Coordinator::Drain(const core::SiteId& site) {
  core::MutexLock lock(mutex_);
  const absl::Status status = rounds_->StartDraining(site, "asked to leave");
  if (!status.ok()) return status;
  SendDrain(site);
  return absl::OkStatus();
}

void Coordinator::SendDrain(const core::SiteId& site) {
  v1::CoordinatorMessage message;
  message.mutable_drain()->set_reason("an operator asked for it");
  SendTo(site, message);
}

StatusSnapshot Coordinator::Status() const {
  core::MutexLock lock(mutex_);
  StatusSnapshot snapshot{.run_id = options_.config.run_id,
                          .protocol = transport::kProtocol,
                          .epoch = epoch_,
                          .state = RunStateName(rounds_->run_state()),
                          .reason = rounds_->Reason(),
                          .uptime_s = static_cast<double>(options_.now_ms() - started_ms_) / 1000.0,
                          .parameters = map_ ? core::NumParameters(map_->manifest()) : 0,
                          .codec = options_.config.codec,
                          .config_json = options_.config_json,
                          .eval_loss_start = eval_loss_.start,
                          .eval_loss_latest = eval_loss_.latest,
                          .eval_loss_versions = eval_loss_.versions};
  for (const auto& [site, record] : rounds_->state().sites) {
    const auto member = members_.find(site);
    SiteStatus& status = snapshot.sites.emplace_back();
    status.name = site;
    status.state = record.state;
    status.reason = record.reason;
    if (member == members_.end()) continue;
    status.progress = member->second.progress;
    status.up_bytes = member->second.meters->up.total();
    status.down_bytes = member->second.meters->down.total();
    status.up_bytes_per_s = member->second.meters->up.bytes_per_s();
    status.down_bytes_per_s = member->second.meters->down.bytes_per_s();
  }
  if (!map_) return snapshot;
  for (const core::Fragment& fragment : map_->fragments()) {
    FragmentStatus& status = snapshot.fragments.emplace_back();
    status.parameters = fragment.parameters;
    status.committed = parameters_->Committed(fragment.id);
    for (const auto& [site, admitted] : rounds_->state().contributions[fragment.id])
      status.contributors.push_back(site);
    status.reason = rounds_->RoundReason(fragment.id);
    status.state = parameters_->Merging(fragment.id) ? "merging" : status.contributors.empty() ? "idle" : "open";
  }
  return snapshot;
}

}  // namespace causeway::server
