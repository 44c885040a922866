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
absl::Status Coordinator::Begin(const StoredRun& stored) {
  core::MutexLock lock(mutex_);
  run_.Restore(stored, started_ms_);
  report_.MakeNotedDurable();
  return stored.rounds.seeded ? run_.RestoreFragments(stored.fragments, started_ms_) : absl::OkStatus();
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
    RunParts parts = run_.Parts();
    stalls_.Tick(now_ms, parts);
    run_.Perform(run_.rounds->Tick(now_ms));
    run_.Publish();
    if (now_ms < sampled_ms_ + kSampleMs) return;
    sampled_ms_ = now_ms;
    run_.members.Sample(now_ms);
  }
  PublishStatus();
}

absl::Status Coordinator::Finish() {
  journal_->Flush();  // rounds decided last are merged now
  if (run_.model.parameters() != nullptr) RETURN_IF_ERROR(run_.model.parameters()->Finish());
  journal_->Flush();
  return status();
}

bool Coordinator::lacks_its_end() const {
  if (options_.completed || !journal_->identity().may_have_lost_its_end) return false;
  core::MutexLock lock(mutex_);
  return run_.admission.strangers().MissesAnEnd();
}

bool Coordinator::done() const {
  {
    core::MutexLock lock(mutex_);
    if (run_.rounds->run_state() != RunState::kDone) return false;
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
    RunParts parts = run_.Parts();
    Actions actions;
    RETURN_IF_ERROR(event(parts, actions));
    run_.Perform(actions);
    run_.Publish();
  }
  journal_->Flush();
  return status();
}

absl::StatusOr<int> Coordinator::NumSeededFragments() const {
  core::MutexLock lock(mutex_);
  if (!run_.model.fact().stays()) return absl::FailedPreconditionError("the run has no parameters yet");
  return run_.model.fact().map().num_fragments();
}

}  // namespace causeway::server
