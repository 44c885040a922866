// The part of SyncEngine that goes on from a checkpoint, and makes one.
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {
namespace {

using core::FragmentId;

}  // namespace

void SyncEngine::Restore(SyncCheckpoint checkpoint) {
  core::MutexLock lock(mutex_);
  progress_.step = checkpoint.step;
  trained_ = checkpoint.trained;
  progress_.tokens = trained_.tokens;
  sites_ = checkpoint.sites;
  checkpoint_ = std::move(checkpoint);
}

void SyncEngine::FillFromCheckpoint() {
  if (checkpoint_->fragments.size() != slots_.size()) {
    failure_ = absl::InternalError(
        absl::StrCat("the checkpoint has ", checkpoint_->fragments.size(), " fragments, the run ", slots_.size()));
    return;
  }
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    FragmentCheckpoint& saved = checkpoint_->fragments[p];
    Slot& slot = slots_[p];
    if (saved.arrays.anchor.size() != slot.sync->anchor().size()) {
      failure_ = absl::InternalError(absl::StrCat("the checkpoint's fragment ", p, " has ", saved.arrays.anchor.size(),
                                                  " values, the run's ", slot.sync->anchor().size()));
      return;
    }
    slot.sync->Restore(saved.version, saved.arrays);
    slot.version = saved.version;
    slot.applied = saved.applied;
    slot.first = saved.first;
    slot.resolved = saved.resolved;
    slot.merged = saved.merged;
    slot.sites = saved.sites;
    slot.sent = saved.sent;
    slot.merged_amount = saved.merged_amount;
    slot.delay = config_.sync.auto_delay() ? saved.delay : schedule_.delay();
    slot.anchored = slot.keeps_local = true;
  }
  checkpoint_.reset();
  stays_ = 1;
}

// The session is still in the run: the steps since the checkpoint are taken again, with the updates that the
// coordinator has kept, and what was merged then is recognised when it is sent.
absl::Status SyncEngine::ResumeFromCheckpoint() {
  int64_t generation = 0;
  {
    core::MutexLock lock(mutex_);
    RETURN_IF_ERROR(InterruptedStatus());
    generation = joined_generation_;
    phase_ = Phase::kTraining;
    resumed_ = false;
    entered_ = true;
    entered_at_ = Clock::now();
    spdlog::info("goes on from the checkpoint after step {}", progress_.step);
  }
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    RequestUpdate(p, generation);
    Upload(p, generation);  // if its chunks are not admitted yet
  }
  if (IsQuorum()) return absl::OkStatus();
  // A checkpoint on the way out may lie between the sends and the applies of its step.
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    bool due = false;
    {
      core::MutexLock lock(mutex_);
      due = ApplyStep(p) <= progress_.step;
    }
    if (due) RETURN_IF_ERROR(Apply(p));
  }
  return absl::OkStatus();
}

bool SyncEngine::Checkpoint(core::Step t, const std::function<void(const SyncCheckpoint&)>& save) {
  {
    core::MutexLock lock(mutex_);
    if (!entered_ || Dropped() || phase_ != Phase::kTraining) return false;
  }
  copies_.Finish();
  tasks_.Post([&] { save(Capture(t)); });
  tasks_.Finish();
  return true;
}

SyncCheckpoint SyncEngine::Capture(core::Step t) const {
  core::MutexLock lock(mutex_);
  SyncCheckpoint checkpoint{.step = t, .trained = trained_, .sites = sites_, .fragments = {}, .storage = nullptr};
  for (const Slot& slot : slots_) {
    checkpoint.fragments.push_back({.version = slot.version,
                                    .applied = slot.applied,
                                    .first = slot.first,
                                    .resolved = slot.resolved,
                                    .merged = slot.merged,
                                    .sites = slot.sites,
                                    .sent = slot.sent,
                                    .merged_amount = slot.merged_amount,
                                    .delay = slot.delay,
                                    .arrays = slot.sync->Arrays()});
  }
  return checkpoint;
}

}  // namespace causeway::worker
