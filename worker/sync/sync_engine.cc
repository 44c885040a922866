#include "worker/sync/sync_engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using core::Step;
using core::Version;

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

SyncEngine::SyncEngine(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest,
                       std::vector<std::span<float>> tensors, transport::CoordinatorLink* link)
    : config_(config),
      site_(std::move(site)),
      manifest_(manifest),
      schedule_(config.sync.Schedule()),
      tensors_(std::move(tensors)),
      link_(link) {}

SyncEngine::~SyncEngine() { Leave(/*finished=*/false, "the program ends"); }

bool SyncEngine::Failed() const { return stop_requested_ || !failure_.ok(); }

absl::Status SyncEngine::FailureStatus() const {
  return failure_.ok() ? absl::CancelledError("asked to stop") : failure_;
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

// ---- Sending ----

bool SyncEngine::Touches(FragmentId p, Step t) const {
  return schedule_.SendsAt(p, t) >= 0 || schedule_.AppliesAt(p, t) >= 0;
}

absl::StatusOr<Step> SyncEngine::AfterStep(Step t) {
  trained_ = true;
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    const Version base = schedule_.SendsAt(p, t);
    if (base >= 0) Send(p, base);
  }
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    Version applied = 0;
    {
      core::MutexLock lock(mutex_);
      if (Failed()) return FailureStatus();
      applied = slots_[p].applied;
    }
    if (schedule_.ApplyStep(p, applied) > t) continue;
    const absl::Status status = Apply(p);
    if (absl::IsAborted(status)) {
      spdlog::warn("the coordinator had dropped this site; it joins anew from the anchors");
      return Join();
    }
    if (!status.ok()) return status;
  }
  return t;
}

void SyncEngine::Send(FragmentId p, Version base) {
  int64_t generation = 0;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    if (Dropped() || base < slot.first) return;
    CHECK(slot.version == base && slot.applied == base);
    slot.uploading = true;
    generation = generation_;
    ++progress_.contributions_sent;
  }
  slots_[p].sync->CopyLocal();
  Post(generation, [this, p, base, generation] { EncodeAndUpload(p, base, generation); });
  RequestUpdate(p, base, generation);
}

void SyncEngine::EncodeAndUpload(FragmentId p, Version base, int64_t generation) {
  absl::StatusOr<std::vector<std::string>> chunks = slots_[p].sync->EncodeContribution();
  if (!chunks.ok()) {
    SetFailure(absl::DataLossError(chunks.status().message()));
    return;
  }
  link_->Upload({.fragment = p,
                 .base = base,
                 .chunks = std::make_shared<const std::vector<std::string>>(*std::move(chunks)),
                 .done = [this, p, base, generation](const absl::Status& verdict) {
                   {
                     core::MutexLock lock(mutex_);
                     if (generation != generation_) return;
                     slots_[p].uploading = false;
                     changed_.notify_all();
                   }
                   if (verdict.ok() || absl::IsCancelled(verdict)) return;
                   spdlog::warn("contribution to fragment {} base {} refused: {}", p, base, verdict.ToString());
                   if (absl::IsDataLoss(verdict)) SetFailure(absl::InternalError(verdict.message()));
                   Post(generation, [this, p] { slots_[p].sync->Resolve(/*merged=*/false); });
                 }});
}

// ---- Receiving ----

// Downloads into memory, still encoded, and passes the whole to `take` on the task thread.
void SyncEngine::Fetch(transport::DownloadRequest request, int64_t generation,
                       std::function<void(const Incoming&, uint64_t digest)> take) {
  auto incoming = std::make_shared<Incoming>();
  request.on_header = [incoming](const transport::DownloadHeader& header) {
    incoming->header = header;
    incoming->chunks.clear();
  };
  request.on_chunk = [incoming](std::string chunk) { incoming->chunks.push_back(std::move(chunk)); };
  request.done = [this, generation, incoming, take = std::move(take)](const absl::Status& status, uint64_t digest) {
    if (absl::IsCancelled(status)) return;
    Post(generation, [this, incoming, take, status, digest] {
      if (!status.ok()) {
        SetFailure(absl::InternalError(status.message()));
      } else {
        take(*incoming, digest);
      }
    });
  };
  link_->Download(std::move(request));
}

void SyncEngine::RequestUpdate(FragmentId p, Version base, int64_t generation) {
  Fetch({.kind = transport::DownloadKind::kUpdate, .fragment = p, .version = base}, generation,
        [this, p, generation](const Incoming& incoming, uint64_t digest) {
          TakeUpdate(p, incoming, digest, generation);
        });
}

void SyncEngine::TakeUpdate(FragmentId p, const Incoming& incoming, uint64_t digest, int64_t generation) {
  FragmentSync& sync = *slots_[p].sync;
  const transport::DownloadHeader& header = incoming.header;
  absl::Status status = sync.TakeUpdate(header.outer, incoming.chunks);
  if (status.ok() && header.version != sync.version()) {
    status = absl::InternalError(absl::StrCat("fragment ", p, ": expected an update to version ", sync.version(),
                                              ", got one to ", header.version));
  }
  if (!status.ok()) {
    SetFailure(absl::InternalError(status.message()));
    return;
  }
  bool merged = std::ranges::binary_search(header.merged, site_);
  {
    // What an earlier stay of this site left in the round is not ours.
    core::MutexLock lock(mutex_);
    merged = merged && header.version - 1 >= slots_[p].first;
  }
  sync.Resolve(merged);
  const uint64_t own_digest = sync.Digest();
  double residual_norm = 0;
  for (const Slot& slot : slots_) residual_norm = std::hypot(residual_norm, slot.sync->ResidualNorm());
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    slot.merged = merged;
    slot.sites = header.sites;
    slot.evaluates = !header.merged.empty() && header.merged.front() == site_;
    if (merged) ++progress_.contributions_merged;
    progress_.digests[p] = {header.version, own_digest};
    progress_.residual_norm = residual_norm;
  }
  if (own_digest != digest) {
    spdlog::error("fragment {} version {}: digest {} differs from the coordinator's {}; fetches the anchor", p,
                  header.version, core::DigestText(own_digest), core::DigestText(digest));
    RequestAnchor(p, header.version, /*held_digest=*/0, generation);
    return;
  }
  core::MutexLock lock(mutex_);
  slots_[p].version = header.version;
  slots_[p].ready_at = Clock::now();
  changed_.notify_all();
}

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
  if (slot.version < version) return Failed() ? FailureStatus() : absl::AbortedError("dropped from the run");
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
  // An update without our contribution moves W and θ alike, so that Δ = W − θ stays whole.
  if (merged) {
    slots_[p].sync->Mix(config_.sync.fragment_update_alpha);
  } else {
    slots_[p].sync->Rebase();
  }
  bool evaluates = false;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    slot.applied = next;
    sites_ = slot.sites;
    evaluates = EvaluatesAfter(slot);
  }
  if (evaluates) PostEvaluation();
  return absl::OkStatus();
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
  tasks_.Post([this] { evaluate_(CopyAnchors()); });
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

absl::Status SyncEngine::CompleteRounds() {
  bool evaluates = false;
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    Version awaited = 0;
    {
      core::MutexLock lock(mutex_);
      const Slot& slot = slots_[p];
      // Sent, or waited for as a joiner: the base is what θ has, and the update is one further.
      const bool open = slot.applied < slot.first || schedule_.SendStep(p, slot.applied) <= progress_.step;
      awaited = slot.applied + (open ? 1 : 0);
    }
    RETURN_IF_ERROR(AwaitVersion(p, awaited));
    core::MutexLock lock(mutex_);
    evaluates |= slots_[p].evaluates;
  }
  if (evaluates) PostEvaluation();
  tasks_.Finish();
  return absl::OkStatus();
}

absl::Status SyncEngine::DrainUploads() {
  constexpr auto kDrainTimeout = std::chrono::seconds(10);
  tasks_.Finish();
  core::MutexLock lock(mutex_);
  const bool drained = lock.WaitFor(changed_, kDrainTimeout, [this] {
    return Dropped() || !failure_.ok() || std::ranges::none_of(slots_, [](const Slot& slot) { return slot.uploading; });
  });
  if (!failure_.ok()) return failure_;
  return drained ? absl::OkStatus() : absl::DeadlineExceededError("contributions in flight were not taken in time");
}

}  // namespace causeway::worker
