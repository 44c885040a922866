// The part of SyncEngine that joins the run, stays in it and leaves it.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using core::Version;

}  // namespace

// ---- What the coordinator says ----

std::vector<Version> SyncEngine::HeldVersions() {
  core::MutexLock lock(mutex_);
  std::vector<Version> versions;
  if (!entered_) return versions;
  for (const Slot& slot : slots_) versions.push_back(slot.version);
  return versions;
}

void SyncEngine::OnWelcome(bool resumed, const core::FragmentMap& map) {
  core::MutexLock lock(mutex_);
  if (map_ == nullptr) {
    map_ = std::make_unique<core::FragmentMap>(map);
    slots_.resize(map_->num_fragments());
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
      slots_[p].sync = std::make_unique<FragmentSync>(*map_, p, config_, tensors_);
    }
  }
  if (map != *map_ && failure_.ok()) failure_ = absl::InternalError("the coordinator changed its fragment map");
  if (!resumed) {
    ++generation_;
    entered_ = false;
    seed_requested_ = false;
    entry_.reset();
  }
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
  RETURN_IF_ERROR(GetAnchors());
  ASSIGN_OR_RETURN(const core::Entry entry, AwaitEntry());
  RETURN_IF_ERROR(Enter(entry));
  return entry.step;
}

// Downloads all anchors, uploading ours first if we are asked for them. ABORTED if we have to join anew.
absl::Status SyncEngine::GetAnchors() {
  tasks_.Finish();  // of an earlier stay
  int64_t generation = 0;
  {
    core::MutexLock lock(mutex_);
    generation = joined_generation_;
  }
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    uint64_t held_digest = 0;
    if (!trained_) {
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
      if (Failed()) return FailureStatus();
      if (Dropped()) return absl::AbortedError("dropped from the run");
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

void SyncEngine::RequestAnchor(FragmentId p, Version at_least, uint64_t held_digest, int64_t generation) {
  {
    core::MutexLock lock(mutex_);
    slots_[p].anchored = false;
  }
  Fetch({.kind = transport::DownloadKind::kAnchor, .fragment = p, .version = at_least, .held_digest = held_digest},
        generation, [this, p](const Incoming& incoming, uint64_t digest) { TakeAnchor(p, incoming, digest); });
}

void SyncEngine::TakeAnchor(FragmentId p, const Incoming& incoming, uint64_t digest) {
  FragmentSync& sync = *slots_[p].sync;
  absl::Status status;
  if (!incoming.header.already_held) status = sync.SetAnchor(incoming.header.version, incoming.chunks);
  const uint64_t own_digest = sync.Digest();
  if (status.ok() && own_digest != digest) {
    status = absl::InternalError(absl::StrCat("anchor of fragment ", p, ": expected digest ", core::DigestText(digest),
                                              ", got ", core::DigestText(own_digest)));
  }
  if (!status.ok()) return SetFailure(absl::InternalError(status.message()));
  core::MutexLock lock(mutex_);
  Slot& slot = slots_[p];
  slot.version = incoming.header.version;
  slot.anchored = true;
  slot.ready_at = Clock::now();
  progress_.digests[p] = {slot.version, own_digest};
  changed_.notify_all();
}

// Asks for our place in the schedule, and fetches again what moved on meanwhile.
absl::StatusOr<core::Entry> SyncEngine::AwaitEntry() {
  link_->SendReady();
  core::Entry entry;
  int64_t generation = 0;
  std::vector<FragmentId> behind;
  {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this] { return entry_ || Dropped() || Failed(); });
    if (Failed()) return FailureStatus();
    if (Dropped()) return absl::AbortedError("dropped from the run");
    entry = *entry_;
    generation = joined_generation_;
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
      if (slots_[p].version < entry.versions[p]) behind.push_back(p);
    }
  }
  for (FragmentId p : behind) RequestAnchor(p, entry.versions[p], /*held_digest=*/0, generation);
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [this] {
    return std::ranges::all_of(slots_, [](const Slot& slot) { return slot.anchored; }) || Dropped() || Failed();
  });
  if (Failed()) return FailureStatus();
  if (Dropped()) return absl::AbortedError("dropped from the run");
  return entry;
}

// Takes the place. ABORTED if the site was dropped before.
absl::Status SyncEngine::Enter(const core::Entry& entry) {
  std::vector<FragmentId> open;
  int64_t generation = 0;
  {
    core::MutexLock lock(mutex_);
    if (Dropped()) return absl::AbortedError("dropped from the run");
    generation = joined_generation_;
    for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
      Slot& slot = slots_[p];
      slot.applied = slot.version;
      slot.first = entry.first_versions[p];
      slot.uploading = false;
      // A round that is open without us: its update moves us when it is due.
      if (slot.version < slot.first) open.push_back(p);
    }
    entered_ = true;
    entered_at_ = Clock::now();
    progress_.step = entry.step;
    progress_.compute_s = progress_.stall_s = 0;
  }
  ++stays_;
  sites_ = entry.sites;
  spdlog::info("enters after step {} with {} sites", entry.step, sites_.size());
  for (const Slot& slot : slots_) slot.sync->CopyAnchorToLocal();
  if (entry.step == 0 && !sites_.empty() && sites_.front() == site_) PostEvaluation();  // the loss at the start
  for (FragmentId p : open) RequestUpdate(p, slots_[p].sync->version(), generation);
  return absl::OkStatus();
}

// ---- Staying and leaving ----

void SyncEngine::Report(const TrainingReport& report) {
  core::MutexLock lock(mutex_);
  progress_.step = report.step;
  progress_.tokens = report.tokens;
  progress_.loss = report.loss;
  progress_.tokens_per_s = report.tokens_per_s;
  progress_.compute_s = report.compute_s;
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
    const Slot& slot = slots_[p];
    if (slot.uploading) progress_.in_flight.push_back(absl::StrCat(p, ":sending"));
    const auto fragment = static_cast<FragmentId>(p);
    const bool waits = slot.version == slot.applied && schedule_.SendStep(fragment, slot.version) <= progress_.step;
    if (!slot.uploading && waits) progress_.in_flight.push_back(absl::StrCat(p, ":waiting"));
  }
  if (!slots_.empty()) {
    progress_.slack_s = std::ranges::min_element(slots_, {}, &Slot::slack_s)->slack_s;
  }
  return progress_;
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
  tasks_.Finish();
  core::Progress last;
  {
    core::MutexLock lock(mutex_);
    last = MakeProgress();
  }
  SendProgress(last);
  link_->Leave(finished, reason);
  tasks_.Finish();
}

}  // namespace causeway::worker
