// The part of SyncEngine that takes anchors and updates in, on the link's threads and the task thread.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using core::Version;

// INVALID_ARGUMENT if a number is of no codec that this program knows.
absl::StatusOr<ChosenCodecs> CodecsOf(const transport::DownloadHeader& header) {
  const ChosenCodecs codecs{core::CodecFromNumber(header.codec), core::CodecFromNumber(header.up_codec)};
  if ((header.codec == 0 || codecs.down) && (header.up_codec == 0 || codecs.up)) return codecs;
  return absl::InvalidArgumentError(
      absl::StrCat("expected numbers of codecs, got ", header.codec, " and ", header.up_codec));
}

// Of an update, whatever codec it comes in.
size_t MostChunks(const core::Fragment& fragment, const core::RunConfig& config) {
  const codecs::LegCodec leg = codecs::DownLeg(config);
  const std::vector<core::CodecId>& allowed = config.codec.allow_down;
  return codecs::PlanChunks(fragment, allowed.empty() ? leg : leg.With(allowed.front())).size();
}

}  // namespace

// Downloads into memory, still encoded, and passes the whole to `take` on the link's thread.
void SyncEngine::Fetch(transport::DownloadRequest request, int64_t generation,
                       std::function<void(const std::shared_ptr<Incoming>&, const absl::Status&)> take) {
  const FragmentId p = request.fragment;
  int64_t fetch = 0;
  {
    core::MutexLock lock(mutex_);
    if (generation != generation_) return;
    fetch = ++slots_[p].fetch;
  }
  auto incoming = std::make_shared<Incoming>();
  request.on_header = [incoming](const transport::DownloadHeader& header) {
    incoming->header = header;
    incoming->begun_at = Clock::now();
    incoming->chunks.assign(std::max(0, header.num_chunks), "");
  };
  request.on_chunk = [incoming](int index, std::string chunk) { incoming->chunks[index] = std::move(chunk); };
  request.done = [this, p, fetch, generation, incoming, take = std::move(take)](const absl::Status& status,
                                                                                uint64_t digest) {
    if (absl::IsCancelled(status)) return;
    {
      core::MutexLock lock(mutex_);
      if (generation != generation_ || fetch != slots_[p].fetch) return;
    }
    incoming->digest = digest;
    take(incoming, status);
  };
  link_->Download(std::move(request));
}

// ---- Anchors ----

void SyncEngine::RequestAnchor(FragmentId p, Version at_least, uint64_t held_digest, int64_t generation) {
  {
    core::MutexLock lock(mutex_);
    slots_[p].anchored = false;
    slots_[p].arrived.reset();
  }
  Fetch({.kind = transport::DownloadKind::kAnchor,
         .fragment = p,
         .version = at_least,
         .held_digest = held_digest,
         .num_chunks = 2 * codecs::PlanChunks(map_->fragment(p), codecs::Unencoded()).size()},
        generation, [this, p, generation](const std::shared_ptr<Incoming>& incoming, const absl::Status& status) {
          if (!status.ok()) return SetFailure(absl::InternalError(status.message()));
          Post(generation, [this, p, incoming, generation] {
            TakeAnchor(p, *incoming);
            RequestUpdate(p, generation);
          });
        });
}

void SyncEngine::TakeAnchor(FragmentId p, const Incoming& incoming) {
  FragmentSync& sync = *slots_[p].sync;
  bool keeps_local = false;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    // What an admitted contribution of ours became is not known any more: it is merged, or will be.
    slot.keeps_local &= !slot.sent.has_value();
    slot.sent.reset();
    keeps_local = slot.keeps_local;
  }
  const absl::StatusOr<ChosenCodecs> codecs = CodecsOf(incoming.header);
  absl::Status status = codecs.status();
  if (status.ok() && !incoming.header.already_held) {  // of version 0, whose codec is the config's
    status = sync.SetAnchor(incoming.header.version, incoming.chunks,
                            keeps_local ? FragmentSync::Local::kKeep : FragmentSync::Local::kReset, *codecs);
  }
  const uint64_t own_digest = sync.Digest();
  if (status.ok() && own_digest != incoming.digest) {
    status =
        absl::InternalError(absl::StrCat("anchor of fragment ", p, ": expected digest ",
                                         core::DigestText(incoming.digest), ", got ", core::DigestText(own_digest)));
  }
  if (!status.ok()) return SetFailure(absl::InternalError(status.message()));
  core::MutexLock lock(mutex_);
  Slot& slot = slots_[p];
  slot.applied = slot.version = incoming.header.version;
  slot.anchored = true;
  slot.ready_at = Clock::now();
  progress_.digests[p] = {slot.version, own_digest};
  changed_.notify_all();
}

// ---- Updates ----

// W is not the run's, or the updates from it on are gone. While the step loop trains, nobody else may move θ: the site
// gives up its place and takes a new one.
void SyncEngine::LoseAnchor(FragmentId p, const std::string& why, int64_t generation) {
  spdlog::warn("fragment {}: {}; takes the anchor", p, why);
  bool joining = false;
  Version version = 0;
  {
    core::MutexLock lock(mutex_);
    if (generation != generation_) return;
    slots_[p].anchored = false;
    version = slots_[p].sync->version();
    joining = phase_ == Phase::kJoining;
    if (joining) {
      slots_[p].busy = false;
    } else {
      entered_ = false;
    }
  }
  if (joining) {
    RequestAnchor(p, version, /*held_digest=*/0, generation);
  } else {
    link_->Rejoin();
  }
}

// Of the version that W has: there is always one asked for.
void SyncEngine::RequestUpdate(FragmentId p, int64_t generation) {
  const auto arrived = [this, p, generation](const std::shared_ptr<Incoming>& incoming, const absl::Status& status) {
    if (status.ok()) {
      core::MutexLock lock(mutex_);
      slots_[p].arrived = incoming;
      TakeArrived(p, generation);
    } else if (absl::IsNotFound(status)) {
      LoseAnchor(p, std::string(status.message()), generation);
    } else {
      SetFailure(absl::InternalError(status.message()));
    }
  };
  Fetch({.kind = transport::DownloadKind::kUpdate,
         .fragment = p,
         .version = slots_[p].sync->version(),
         .num_chunks = MostChunks(map_->fragment(p), config_)},
        generation, arrived);
}

// Lets the task thread take the next update, if it is here and its turn has come.
void SyncEngine::TakeArrived(FragmentId p, int64_t generation) {
  Slot& slot = slots_[p];
  if (slot.arrived == nullptr || slot.busy || phase_ == Phase::kEntering) return;
  if (phase_ == Phase::kTraining) {
    // Synchronous: a site that repeats steps from a checkpoint sends first what this update has merged already.
    const bool sent = IsQuorum() || slot.version < slot.first || (slot.sent && slot.sent->base == slot.version);
    if (slot.version != slot.applied || !sent) return;
  }
  slot.busy = true;
  Post(generation, [this, p, generation, incoming = std::move(slot.arrived)] { TakeUpdate(p, *incoming, generation); });
  slot.arrived.reset();
}

void SyncEngine::TakeUpdate(FragmentId p, const Incoming& incoming, int64_t generation) {
  FragmentSync& sync = *slots_[p].sync;
  const transport::DownloadHeader& header = incoming.header;
  const absl::StatusOr<ChosenCodecs> codecs = CodecsOf(header);
  absl::Status status = codecs.status();
  if (status.ok()) status = sync.TakeUpdate(header.outer, incoming.chunks, *codecs);
  if (status.ok() && header.version != sync.version()) {
    status = absl::InternalError(absl::StrCat("fragment ", p, ": expected an update to version ", sync.version(),
                                              ", got one to ", header.version));
  }
  if (!status.ok()) {
    SetFailure(absl::InternalError(status.message()));
    return;
  }
  const bool merged = ResolveBy(p, header);
  const uint64_t own_digest = sync.Digest();
  double residual_norm = 0;
  for (const Slot& slot : slots_) residual_norm = std::hypot(residual_norm, slot.sync->ResidualNorm());
  bool joining = false, keeps_local = false;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    slot.merged = merged;
    slot.sites = header.sites;
    slot.evaluates = !header.merged.empty() && header.merged.front() == site_;
    if (merged) ++progress_.contributions_merged;
    progress_.digests[p] = {header.version, own_digest};
    progress_.residual_norm = residual_norm;
    joining = phase_ == Phase::kJoining || phase_ == Phase::kEntering;  // the step loop waits for us then
    keeps_local = slot.keeps_local;
  }
  if (joining && keeps_local) MoveLocal(p, merged);
  if (own_digest != incoming.digest) {
    LoseAnchor(p,
               absl::StrCat("version ", header.version, ": digest ", core::DigestText(own_digest),
                            " differs from the coordinator's ", core::DigestText(incoming.digest)),
               generation);
    return;
  }
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    slot.busy = false;  // with the version: a SEND in between would take the new W for the old one
    slot.version = header.version;
    if (joining || phase_ == Phase::kCompleting) slot.applied = slot.version;
    slot.ready_at = Clock::now();
    if (merged && phase_ == Phase::kTraining) {
      // The verdict may be later than the update, where it is not known to have waited.
      const bool admitted = slot.admitted_at > slot.sent_at;
      delay_.Arrived(Seconds(slot.ready_at - slot.sent_at),
                     admitted ? Seconds(incoming.begun_at - slot.admitted_at) : 0);
    }
    changed_.notify_all();
  }
  RequestUpdate(p, generation);
}

// Whether our unresolved contribution is in this update; if so it is resolved. What an earlier stay of this site left
// in a round is not ours: it has another base. In synchronous mode this is its only round, merged or not.
bool SyncEngine::ResolveBy(FragmentId p, const transport::DownloadHeader& header) {
  bool merged = false;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[p];
    if (!slot.sent) return false;
    const auto own = std::ranges::lower_bound(header.merged, site_);
    if (own != header.merged.end() && *own == site_) {
      const size_t index = own - header.merged.begin();
      merged =
          slot.sent->base == (index < header.merged_bases.size() ? header.merged_bases[index] : header.version - 1);
    }
    if (!merged && IsQuorum()) return false;
    if (merged) {
      slot.resolved = slot.sent->base;
      slot.merged_amount = slot.sent->amount;
    }
    slot.sent.reset();
  }
  slots_[p].sync->Resolve(merged);
  return merged;
}

}  // namespace causeway::worker
