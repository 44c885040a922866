// The part of SyncEngine that joins the run, stays in it and leaves it.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using core::Version;

}  // namespace

// ---- What the coordinator says ----

transport::Standing SyncEngine::GetStanding() {
  core::MutexLock lock(mutex_);
  transport::Standing standing;
  standing.joining = IsJoining();
  if (checkpoint_) {
    standing.from_checkpoint = true;
    for (const FragmentCheckpoint& fragment : checkpoint_->fragments) standing.versions.push_back(fragment.version);
  } else if (entered_) {
    for (const Slot& slot : slots_) standing.versions.push_back(slot.version);
  }
  return standing;
}

bool SyncEngine::IsJoining() const {
  return generation_ > 0 && generation_ == joined_generation_ && phase_ == Phase::kJoining && !entry_;
}

void SyncEngine::OnWelcome(const transport::Welcome& welcome) {
  core::MutexLock lock(mutex_);
  if (map_ == nullptr) {
    map_ = std::make_unique<core::FragmentMap>(welcome.map);
    slots_.resize(map_->num_fragments());
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
      slots_[p].sync = std::make_unique<FragmentSync>(*map_, p, config_, tensors_);
    }
  }
  if (welcome.map != *map_ && failure_.ok()) {
    failure_ = absl::InternalError("the coordinator changed its fragment map");
  }
  const bool starts = generation_ == 0;
  const bool from_checkpoint = checkpoint_.has_value();
  if (from_checkpoint) FillFromCheckpoint();
  for (Slot& slot : slots_) {
    if (!welcome.same_lineage) slot.anchored = slot.keeps_local = false;
  }
  last_admitted_ = welcome.last_admitted;
  last_admitted_.resize(slots_.size(), -1);
  // A joiner's downloads are of use whatever became of its stay, as long as it has no place that it could miss.
  const bool goes_on = welcome.resumed || (welcome.kept_transfers && IsJoining());
  if (starts || !goes_on) {
    ++generation_;
    entered_ = false;
    seed_requested_ = false;
    resumed_ = welcome.resumed && from_checkpoint;
    entry_.reset();
  }
  ready_due_ = true;
  changed_.notify_all();
}

void SyncEngine::OnSeedRequest() {
  core::MutexLock lock(mutex_);
  seed_requested_ = true;
  changed_.notify_all();
}

void SyncEngine::OnEntry(const core::Entry& entry) {
  core::MutexLock lock(mutex_);
  const size_t fragments = slots_.size();
  if (entry.versions.size() != fragments || entry.first_versions.size() != fragments) {
    failure_ = absl::InternalError(absl::StrCat("entry: expected ", fragments, " versions, got ", entry.versions.size(),
                                                " and ", entry.first_versions.size()));
  }
  entry_ = entry;
  changed_.notify_all();
}

void SyncEngine::OnNotice(const std::string& reason) { spdlog::info("the run waits: {}", reason); }

void SyncEngine::OnDrain(const std::string& reason) {
  spdlog::info("asked to leave: {}", reason);
  RequestStop();
}

void SyncEngine::OnHold(bool held) {
  core::MutexLock lock(mutex_);
  held_ = held;
  changed_.notify_all();
}

void SyncEngine::OnFailure(const absl::Status& status) { SetFailure(status); }

// ---- Join ----

absl::StatusOr<core::Step> SyncEngine::Join() {
  if (!heart_.joinable()) {
    link_->Start(manifest_, this);
    heart_ = std::thread([this] { Beat(); });
  }
  while (true) {
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this] { return generation_ > joined_generation_ || Failed(); });
      if (Failed()) return FailureStatus();
      joined_generation_ = generation_;
    }
    const absl::StatusOr<core::Step> step = TakePlace();
    if (!absl::IsAborted(step.status())) return step;  // otherwise dropped meanwhile: once more
  }
}

absl::StatusOr<core::Step> SyncEngine::TakePlace() {
  FinishTasks();  // of an earlier stay
  std::optional<core::Step> resumed_at;
  {
    core::MutexLock lock(mutex_);
    if (resumed_) resumed_at = progress_.step;
  }
  if (resumed_at) {
    RETURN_IF_ERROR(ResumeFromCheckpoint());
    return *resumed_at;
  }
  {
    core::MutexLock lock(mutex_);
    phase_ = Phase::kJoining;
    progress_.completing = false;
    SettleEarlierStay();
  }
  RETURN_IF_ERROR(GetAnchors());
  ASSIGN_OR_RETURN(const core::Entry entry, AwaitEntry());
  RETURN_IF_ERROR(Enter(entry));
  return entry.step;
}

// What becomes of θ and of an unresolved contribution when the site has lost its place.
void SyncEngine::SettleEarlierStay() {
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    Slot& slot = slots_[p];
    slot.busy = false;
    slot.send_due = false;
    slot.arrived.reset();
    if (!slot.keeps_local) {
      slot.sent.reset();
      slot.sync->ForgetResidual();
      continue;
    }
    if (slot.sync->version() > slot.applied) {  // an update that W has taken and θ has not
      MoveLocal(p, slot.merged);
      slot.applied = slot.version = slot.sync->version();
    }
    const Version known = slot.sent ? slot.sent->base : slot.resolved;
    if (last_admitted_[p] > known) {
      spdlog::warn("fragment {}: a contribution that this site does not know of was merged; starts from the anchor", p);
      slot.keeps_local = false;
      slot.sent.reset();
      slot.sync->ForgetResidual();
    } else if (slot.sent && last_admitted_[p] < slot.sent->base) {
      slot.sent.reset();
      slot.sync->Resolve(/*merged=*/false);
    } else if (slot.sent) {
      slot.sent->admitted = true;
      slot.sent->chunks.reset();
    }
  }
}

// Downloads the anchors that are not here, uploading ours first if we are asked for them; with the others the updates
// go on. ABORTED if we have to join anew.
absl::Status SyncEngine::GetAnchors() {
  int64_t generation = 0;
  {
    core::MutexLock lock(mutex_);
    generation = joined_generation_;
  }
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    bool anchored = false;
    {
      core::MutexLock lock(mutex_);
      anchored = slots_[p].anchored;
    }
    if (anchored) {
      RequestUpdate(p, generation);
      continue;
    }
    uint64_t held_digest = 0;
    if (stays_ == 0) {
      slots_[p].sync->SetAnchorFromLocal();
      held_digest = slots_[p].sync->Digest();
    }
    RequestAnchor(p, /*at_least=*/0, held_digest, generation);
  }
  while (true) {
    {
      core::MutexLock lock(mutex_);
      const auto anchored = [this] {
        return std::ranges::all_of(slots_, [](const Slot& slot) { return slot.anchored; });
      };
      lock.Wait(changed_, [&] { return seed_requested_ || anchored() || Dropped() || Failed(); });
      RETURN_IF_ERROR(InterruptedStatus());
      if (anchored()) return absl::OkStatus();
      seed_requested_ = false;
    }
    UploadInitial();
  }
}

void SyncEngine::UploadInitial() {
  spdlog::info("this site is the first: it supplies the initial parameters");
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    absl::StatusOr<std::vector<std::string>> chunks = slots_[p].sync->EncodeInitial();
    if (!chunks.ok()) return SetFailure(absl::DataLossError(chunks.status().message()));
    link_->Upload({.initial = true,
                   .fragment = p,
                   .chunks = std::make_shared<const std::vector<std::string>>(*std::move(chunks)),
                   .done = [this](const absl::Status& verdict) {
                     if (verdict.ok() || absl::IsCancelled(verdict)) return;
                     SetFailure(absl::InternalError(
                         absl::StrCat("initial parameters refused: ", std::string(verdict.message()))));
                   }});
  }
}

// Asks for our place in the schedule, again whenever the control stream is a new one, and catches up with it.
absl::StatusOr<core::Entry> SyncEngine::AwaitEntry() {
  while (true) {
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this] { return entry_ || ready_due_ || Dropped() || Failed(); });
      RETURN_IF_ERROR(InterruptedStatus());
      if (entry_) break;
      ready_due_ = false;
    }
    link_->SendReady();
  }
  core::MutexLock lock(mutex_);
  const core::Entry entry = *entry_;
  lock.Wait(changed_, [&] {
    bool caught_up = true;
    for (size_t p = 0; p < slots_.size(); ++p) {
      caught_up &= slots_[p].anchored && slots_[p].version >= entry.versions[p];
    }
    return caught_up || Dropped() || Failed();
  });
  RETURN_IF_ERROR(InterruptedStatus());
  return entry;
}

// Takes the place. ABORTED if the site was dropped before.
absl::Status SyncEngine::Enter(const core::Entry& entry) {
  {
    core::MutexLock lock(mutex_);
    phase_ = Phase::kEntering;
  }
  FinishTasks();  // an update that is being taken; none follows it
  core::MutexLock lock(mutex_);
  if (Dropped()) return absl::AbortedError("dropped from the run");
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    Slot& slot = slots_[p];
    slot.first = entry.first_versions[p];
    if (!slot.keeps_local) {
      slot.sync->CopyAnchorToLocal();
      slot.applied = slot.version;
      slot.merged_amount = trained_;
      slot.resolved = last_admitted_[p];
      slot.keeps_local = true;
    }
    ChooseDelay(p);
  }
  stepped_at_ = {};
  stalled_s_ = 0;
  phase_ = Phase::kTraining;
  entered_ = true;
  entered_at_ = Clock::now();
  progress_.step = entry.step;
  progress_.compute_s = progress_.stall_s = 0;
  ++stays_;
  sites_ = entry.sites;
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) TakeArrived(p, joined_generation_);
  spdlog::info("enters after step {} with {} sites", entry.step, sites_.size());
  if (entry.step == 0 && !sites_.empty() && sites_.front() == site_) PostEvaluation();  // the loss at the start
  return absl::OkStatus();
}

// ---- Staying and leaving ----

void SyncEngine::Report(const TrainingReport& report) {
  core::MutexLock lock(mutex_);
  trained_.tokens += report.tokens - reported_tokens_;
  reported_tokens_ = report.tokens;
  progress_.step = report.step;
  progress_.tokens = trained_.tokens;
  progress_.loss = report.loss;
  progress_.tokens_per_s = report.tokens_per_s;
  progress_.compute_s = report.compute_s;
  progress_.offload = report.offload;
}

void SyncEngine::ReportEval(double loss, std::vector<Version> versions) {
  core::MutexLock lock(mutex_);
  progress_.eval_loss = loss;
  progress_.eval_versions = std::move(versions);
}

core::Progress SyncEngine::MakeProgress() {
  if (entered_) progress_.wall_s = std::chrono::duration<double>(Clock::now() - entered_at_).count();
  progress_.in_flight.clear();
  for (size_t p = 0; entered_ && p < slots_.size(); ++p) {
    if (!slots_[p].sent) continue;
    progress_.in_flight.push_back(absl::StrCat(p, slots_[p].sent->admitted ? ":waiting" : ":sending"));
  }
  if (!slots_.empty()) {
    progress_.slack_s = std::ranges::min_element(slots_, {}, &Slot::slack_s)->slack_s;
  }
  for (size_t p = 0; p < slots_.size(); ++p) {
    const Slot& slot = slots_[p];
    progress_.fragments[static_cast<FragmentId>(p)] = {slot.slack_s, slot.delay, slot.delay_reason};
  }
  progress_.link = link_->Measured();
  return progress_;
}

core::Progress SyncEngine::GetProgress() {
  core::MutexLock lock(mutex_);
  return MakeProgress();
}

void SyncEngine::Beat() {
  // Often enough that one lost beat does not cost the lease.
  const auto interval = std::chrono::milliseconds(std::clamp<int64_t>(config_.membership.lease_ms / 4, 20, 1000));
  while (true) {
    core::Progress progress;
    {
      core::MutexLock lock(mutex_);
      if (lock.WaitFor(changed_, interval, [this] { return leaving_; })) return;
      progress = MakeProgress();
    }
    SendProgress(progress);
  }
}

void SyncEngine::SendProgress(const core::Progress& progress) {
  if (!link_->SendProgress(progress) || !progress.eval_loss) return;
  // An evaluation is reported once.
  core::MutexLock lock(mutex_);
  if (progress_.eval_versions == progress.eval_versions) progress_.eval_loss.reset();
}

void SyncEngine::Leave(bool finished, const std::string& reason) {
  if (!heart_.joinable()) return;
  {
    core::MutexLock lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
  }
  heart_.join();
  FinishTasks();
  core::Progress last;
  {
    core::MutexLock lock(mutex_);
    last = MakeProgress();
  }
  SendProgress(last);
  link_->Leave(finished, reason);
  FinishTasks();
}

}  // namespace causeway::worker
