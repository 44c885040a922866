// The part of SyncEngine that the step loop calls.
#include "worker/sync/sync_engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using core::Step;
using core::Version;

}  // namespace

SyncEngine::SyncEngine(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest,
                       std::vector<std::span<float>> tensors, transport::CoordinatorLink* link)
    : config_(config),
      site_(std::move(site)),
      manifest_(manifest),
      schedule_(config.sync.Schedule()),
      tensors_(std::move(tensors)),
      link_(link),
      delay_(config.sync.sync_every, config.sync.num_fragments) {}

SyncEngine::~SyncEngine() { Leave(/*finished=*/false, "the program ends"); }

bool SyncEngine::Failed() const { return stop_requested_ || !failure_.ok(); }

absl::Status SyncEngine::FailureStatus() const {
  return failure_.ok() ? absl::CancelledError("asked to stop") : failure_;
}

absl::Status SyncEngine::InterruptedStatus() const {
  if (Failed()) return FailureStatus();
  return Dropped() ? absl::AbortedError("dropped from the run") : absl::OkStatus();
}

absl::Status SyncEngine::Interrupted() const {
  core::MutexLock lock(mutex_);
  return InterruptedStatus();
}

void SyncEngine::SetFailure(const absl::Status& status) {
  core::MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = status;
  changed_.notify_all();
}

void SyncEngine::RequestStop() {
  core::MutexLock lock(mutex_);
  stop_requested_ = true;
  changed_.notify_all();
}

void SyncEngine::Post(int64_t generation, std::function<void()> task) {
  tasks_.Post([this, generation, task = std::move(task)] {
    {
      core::MutexLock lock(mutex_);
      if (generation != generation_) return;
    }
    task();
  });
}

bool SyncEngine::Touches(FragmentId p, Step t) const {
  if (schedule_.SendsAt(p, t) >= 0) return true;
  core::MutexLock lock(mutex_);
  if (!IsQuorum()) return ApplyStep(p) <= t;
  return slots_[p].send_due || slots_[p].version > slots_[p].applied || slots_[p].busy;
}

absl::Status SyncEngine::HoldWhilePaused() {
  core::MutexLock lock(mutex_);
  if (held_) {
    spdlog::info("the run is paused: holds");
    stepped_at_ = {};
  }
  lock.Wait(changed_, [this] { return !held_ || Dropped() || Failed(); });
  return Failed() ? FailureStatus() : absl::OkStatus();
}

absl::StatusOr<Step> SyncEngine::AfterStep(Step t) {
  {
    core::MutexLock lock(mutex_);
    ++trained_.steps;
    const Clock::time_point now = Clock::now();
    const double waited_s = progress_.stall_s - std::exchange(stalled_s_, progress_.stall_s);
    if (stepped_at_ != Clock::time_point()) delay_.Stepped(std::max(0.0, Seconds(now - stepped_at_) - waited_s));
    stepped_at_ = now;
  }
  const auto join_if_dropped = [&](const absl::Status& status) -> absl::StatusOr<Step> {
    if (status.ok()) return t;
    if (!absl::IsAborted(status)) return status;
    spdlog::warn("the coordinator had dropped this site; it joins anew");
    return Join();
  };
  // Synchronous: sends come before applies. Quorum: what has arrived is applied before a contribution is made.
  if (!IsQuorum()) {
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) SendDue(p, t);
  }
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    bool due = false;
    {
      core::MutexLock lock(mutex_);
      if (Failed()) return FailureStatus();
      if (Dropped()) break;
      const Slot& slot = slots_[p];
      due = IsQuorum() ? slot.version > slot.applied && !slot.busy : ApplyStep(p) <= t;
    }
    if (!due) continue;
    const absl::Status status = Apply(p);
    if (!status.ok()) return join_if_dropped(status);
  }
  if (IsQuorum()) {
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) SendDue(p, t);
  }
  if (bus_ == nullptr) copies_.Finish();
  RETURN_IF_ERROR(HoldWhilePaused());
  return join_if_dropped(Interrupted());
}

// ---- Sending ----

void SyncEngine::SendDue(FragmentId p, Step t) {
  const Version scheduled = schedule_.SendsAt(p, t);
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    if (Dropped()) return;
    if (!IsQuorum()) {
      if (scheduled < 0 || scheduled < slot.first) return;
      CHECK(slot.version == scheduled && slot.applied == scheduled && !slot.busy);
    } else {
      slot.send_due |= scheduled >= 0;
      if (!slot.send_due) return;
      if (slot.sent || slot.version < slot.first) {
        slot.send_due = false;
        ++progress_.contributions_skipped;
        return;
      }
      if (slot.busy || slot.version != slot.applied) return;  // after the next step
      slot.send_due = false;
    }
  }
  Send(p);
}

void SyncEngine::Send(FragmentId p) {
  int64_t generation = 0;
  Version base = 0;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    base = slot.version;
    slot.busy = true;
    slot.sent = UnresolvedContribution{
        .base = base,
        .amount = trained_,
        .weight = {trained_.tokens - slot.merged_amount.tokens, trained_.steps - slot.merged_amount.steps}};
    slot.sent_at = Clock::now();
    ChooseDelay(p);
    generation = generation_;
    ++progress_.contributions_sent;
  }
  FragmentSync& sync = *slots_[p].sync;
  const int64_t ticket = bus_ == nullptr ? 0 : bus_->Announce(sync.LocalRanges());
  copies_.Post([this, p, base, generation, ticket, &sync] {
    bus_ == nullptr ? sync.CopyLocal() : bus_->Copy(ticket, [&](const auto& piece) { sync.CopyLocal(piece); });
    Post(generation, [this, p, base, generation] { EncodeAndUpload(p, base, generation); });
  });
}

void SyncEngine::ChooseDelay(FragmentId p) {
  Slot& slot = slots_[p];
  if (!config_.sync.auto_delay()) {
    slot.delay = schedule_.delay();
    return;
  }
  const SyncDelay::Choice choice = delay_.Choose();
  slot.delay = choice.delay;
  slot.delay_reason = choice.reason;
}

void SyncEngine::EncodeAndUpload(FragmentId p, Version base, int64_t generation) {
  absl::StatusOr<std::vector<std::string>> chunks = slots_[p].sync->EncodeContribution();
  if (!chunks.ok()) {
    SetFailure(absl::DataLossError(chunks.status().message()));
    return;
  }
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    slot.busy = false;
    if (!slot.sent || slot.sent->base != base) return;
    slot.sent->chunks = std::make_shared<const std::vector<std::string>>(*std::move(chunks));
    TakeArrived(p, generation);
    changed_.notify_all();
  }
  Upload(p, generation);
}

void SyncEngine::Upload(FragmentId p, int64_t generation) {
  transport::UploadRequest request{.fragment = p};
  {
    core::MutexLock lock(mutex_);
    const std::optional<UnresolvedContribution>& sent = slots_[p].sent;
    if (!sent || sent->chunks == nullptr) return;
    request.base = sent->base;
    request.tokens = sent->weight.tokens;
    request.steps = sent->weight.steps;
    request.chunks = sent->chunks;
  }
  request.done = [this, p, base = request.base, generation](const absl::Status& verdict) {
    OnVerdict(p, base, generation, verdict);
  };
  link_->Upload(std::move(request));
}

void SyncEngine::OnVerdict(FragmentId p, Version base, int64_t generation, const absl::Status& verdict) {
  {
    core::MutexLock lock(mutex_);
    std::optional<UnresolvedContribution>& sent = slots_[p].sent;
    if (generation != generation_ || !sent || sent->base != base || absl::IsCancelled(verdict)) return;
    changed_.notify_all();
    if (verdict.ok()) {
      sent->admitted = true;
      slots_[p].admitted_at = Clock::now();
      sent->chunks.reset();
      return;
    }
  }
  spdlog::warn("contribution to fragment {} base {} refused: {}", p, base, verdict.ToString());
  if (absl::IsDataLoss(verdict)) SetFailure(absl::InternalError(verdict.message()));
  Post(generation, [this, p, base] {
    slots_[p].sync->Resolve(/*merged=*/false);
    core::MutexLock lock(mutex_);
    if (slots_[p].sent && slots_[p].sent->base == base) slots_[p].sent.reset();
    changed_.notify_all();
  });
}

// ---- Applying ----

// Waits for the anchor to be at that version: the only wait of the step loop, and measured. ABORTED if the site was
// dropped from the run.
absl::Status SyncEngine::AwaitVersion(FragmentId p, Version version) {
  const Clock::time_point begin = Clock::now();
  core::MutexLock lock(mutex_);
  Slot& slot = slots_[p];
  const bool waited = slot.version < version;
  lock.Wait(changed_, [&] { return slot.version >= version || Dropped() || Failed(); });
  const double stall_s = waited ? Seconds(Clock::now() - begin) : 0;
  progress_.stall_s += stall_s;
  if (slot.version < version) return InterruptedStatus();
  slot.slack_s = waited ? -stall_s : Seconds(begin - slot.ready_at);
  return absl::OkStatus();
}

absl::Status SyncEngine::Apply(FragmentId p) {
  Version next = 0;
  {
    core::MutexLock lock(mutex_);
    next = slots_[p].applied + 1;
  }
  RETURN_IF_ERROR(AwaitVersion(p, next));
  bool merged = false;
  {
    core::MutexLock lock(mutex_);
    merged = slots_[p].merged;
  }
  MoveLocal(p, merged);
  bool evaluates = false;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    slot.applied = next;
    sites_ = slot.sites;
    evaluates = EvaluatesAfter(slot);
    TakeArrived(p, generation_);
  }
  if (evaluates) PostEvaluation();
  return absl::OkStatus();
}

// An update without our contribution moves W and θ alike, so that Δ = W − θ stays whole.
void SyncEngine::MoveLocal(FragmentId p, bool merged) {
  if (merged) {
    slots_[p].sync->Mix(config_.sync.fragment_update_alpha);
  } else {
    slots_[p].sync->Rebase();
  }
}

// After every so many rounds of all fragments; the site that comes first in the update that completes them.
bool SyncEngine::EvaluatesAfter(const Slot& slot) const {
  const int64_t every = config_.eval.every_rounds;
  if (every == 0 || !slot.evaluates || slot.applied % every != 0) return false;
  return std::ranges::all_of(slots_, [&](const Slot& other) { return other.applied >= slot.applied; });
}

// W changes on the task thread alone, so a copy made there is of whole versions.
void SyncEngine::PostEvaluation() {
  if (evaluate_ == nullptr || config_.eval.every_rounds == 0) return;
  PostAnchorCopy(evaluate_);
}

void SyncEngine::PostAnchorCopy(std::function<void(AnchorCopy)> take) {
  tasks_.Post([this, take = std::move(take)] { take(CopyAnchors()); });
}

AnchorCopy SyncEngine::CopyAnchors() const {
  AnchorCopy copy;
  copy.tensors.resize(manifest_.size());
  for (const Slot& slot : slots_) {
    const FragmentSync& sync = *slot.sync;
    copy.versions.push_back(sync.version());
    for (const core::TensorPlace& place : sync.fragment().tensors) {
      const std::span<const float> values = sync.PartOf(sync.anchor(), place);
      copy.tensors[place.tensor].assign(values.begin(), values.end());
    }
  }
  return copy;
}

Version SyncEngine::CompletedRounds() const {
  core::MutexLock lock(mutex_);
  return slots_.empty() ? 0 : std::ranges::min_element(slots_, {}, &Slot::applied)->applied;
}

// ---- The end ----

absl::Status SyncEngine::CompleteRounds() {
  std::vector<Version> awaited;
  core::Progress progress;
  {
    core::MutexLock lock(mutex_);
    phase_ = Phase::kCompleting;
    progress_.completing = true;
    progress = MakeProgress();
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
      Slot& slot = slots_[p];
      slot.keeps_local = false;  // θ does not follow W any more
      // Synchronous: sent, or waited for as a joiner: the base is what θ has, and the update is one further.
      const bool open = slot.applied < slot.first || schedule_.SendStep(p, slot.applied) <= progress_.step;
      awaited.push_back(slot.applied + (open && !IsQuorum() ? 1 : 0));
      TakeArrived(p, generation_);
    }
  }
  SendProgress(progress);  // at once: rounds need not wait for us any more
  bool evaluates = false;
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    RETURN_IF_ERROR(AwaitVersion(p, awaited[p]));
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return (!IsQuorum() || !slots_[p].sent) || Dropped() || Failed(); });
    RETURN_IF_ERROR(InterruptedStatus());
    evaluates |= slots_[p].evaluates;
  }
  if (evaluates) PostEvaluation();
  FinishTasks();
  return absl::OkStatus();
}

absl::Status SyncEngine::DrainUploads() {
  constexpr auto kDrainTimeout = std::chrono::seconds(10);
  FinishTasks();
  core::MutexLock lock(mutex_);
  const bool drained = lock.WaitFor(changed_, kDrainTimeout, [this] {
    return Dropped() || !failure_.ok() ||
           std::ranges::none_of(slots_, [](const Slot& slot) { return slot.sent && !slot.sent->admitted; });
  });
  if (!failure_.ok()) return failure_;
  return drained ? absl::OkStatus() : absl::DeadlineExceededError("contributions in flight were not taken in time");
}

}  // namespace causeway::worker
