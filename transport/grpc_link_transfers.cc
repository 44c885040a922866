// The part of GrpcLink that looks after transfers: launched while welcomed, and again where they broke.
//
// Uploads go one after the other, each over all connections: the fragment that was sent first is needed first, and
// keeps its turn while it waits for its retry. The next one begins when the last one's bytes are with gRPC, so that the
// link is not idle in between.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "core/limits.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/grpc_link.h"
#include "transport/kernel_buffers.h"

namespace causeway::transport {
namespace {

// As many as a rate takes: of a download each takes a window's worth ahead of its turn, so one too many costs more than
// where nothing is held.
int HeldChannels(const Pacer& pacer, double round_trip_s) {
  return ChannelsFor(kRoomToGrow * pacer.bytes_per_s(), round_trip_s);
}

}  // namespace

void GrpcLink::Upload(UploadRequest request) { Add(MakeUpload(std::move(request))); }

void GrpcLink::Download(DownloadRequest request) { Add(MakeDownload(std::move(request))); }

// What is asked for twice moves once, for the later request: its owner has reason to think that the earlier one is
// lost.
void GrpcLink::Add(std::shared_ptr<Transfer> transfer) {
  if (DropIf([&](const Transfer& earlier) { return transfer->Replaces(earlier); })) transfer->TakePlaceOfEarlier();
  {
    core::MutexLock lock(mutex_);
    if (!stopping_ && !failed_) {
      transfers_.push_back({.transfer = std::move(transfer)});
      transfer = nullptr;
    }
  }
  if (transfer != nullptr) {
    transfer->Finish(absl::CancelledError("the link has ended"));
  } else {
    LaunchDue();
  }
}

std::list<GrpcLink::Pending>::iterator GrpcLink::Find(const std::shared_ptr<Transfer>& transfer) {
  return std::find_if(transfers_.begin(), transfers_.end(),
                      [&](const Pending& pending) { return pending.transfer == transfer; });
}

bool GrpcLink::MayLaunch(const Pending& pending, int64_t now_ms) const {
  if (pending.running || now_ms < pending.retry_at_ms) return false;
  if (!pending.transfer->is_upload()) return true;
  bool earlier = true;
  for (const Pending& other : transfers_) {
    if (&other == &pending) earlier = false;
    if (other.writing || (earlier && !other.running && other.transfer->is_upload())) return false;
  }
  return true;
}

// Until LaunchDue should be called again after it was at that time: when the next retry is due, if that is soon.
int64_t GrpcLink::MsToLook(int64_t looked_ms) const {
  int64_t wait_ms = core::kFirstBackoffMs;
  for (const Pending& pending : transfers_) {
    if (pending.running || pending.retry_at_ms <= looked_ms) continue;
    wait_ms = std::min(wait_ms, pending.retry_at_ms - looked_ms);
  }
  return wait_ms;
}

Lanes GrpcLink::LanesFor(const Transfer& transfer) {
  Lanes lanes{.wire = wire_.get(), .pacer = transfer.is_upload() ? &up_ : &down_, .meter = &meter_};
  int wanted = options_.channels > 0 ? options_.channels : meter_.channels();
  if (lanes.pacer->limits() && options_.channels == 0) {
    wanted = std::min(wanted, HeldChannels(*lanes.pacer, meter_.round_trip_s()));
  }
  lanes.channels = std::max(1, wanted);
  return lanes;
}

void GrpcLink::LaunchDue() {
  struct Launched {
    std::shared_ptr<Transfer> transfer;
    Lanes lanes;
  };
  std::vector<Launched> due;
  v1::Context context;
  std::optional<uint64_t> generation;
  {
    core::MutexLock lock(mutex_);
    if (!welcomed_ || stopping_) return;
    context = MakeContext();
    generation = generation_;
    const int64_t now_ms = clock_.NowMs();
    for (Pending& pending : transfers_) {
      if (!MayLaunch(pending, now_ms)) continue;
      pending.running = true;
      pending.writing = pending.transfer->is_upload();
      due.push_back({pending.transfer, LanesFor(*pending.transfer)});
    }
  }
  for (const auto& [launched, lanes] : due) {
    const std::shared_ptr<Transfer> transfer = launched;
    transfer->Launch(
        lanes, context, generation, [this, transfer] { OnTransferWritten(transfer); },
        [this, transfer](bool finished) { OnTransferEnded(transfer, finished); });
    // It may have been dropped before there was a stream to cancel.
    core::MutexLock lock(mutex_);
    const auto pending = Find(transfer);
    if (pending != transfers_.end() && (pending->dropped || stopping_ || failed_)) transfer->Cancel();
  }
}

void GrpcLink::OnTransferWritten(const std::shared_ptr<Transfer>& transfer) {
  {
    core::MutexLock lock(mutex_);
    const auto pending = Find(transfer);
    if (pending != transfers_.end()) pending->writing = false;
  }
  LaunchDue();
}

void GrpcLink::OnTransferEnded(const std::shared_ptr<Transfer>& transfer, bool finished) {
  {
    core::MutexLock lock(mutex_);
    Pending& pending = *Find(transfer);
    pending.writing = false;
    if (!finished && !pending.dropped && !stopping_ && !failed_) {
      pending.running = false;
      const int64_t broke_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(transfer->broke_at().time_since_epoch()).count();
      // Never now: the link's thread tells a retry that is to come from one that it has seen.
      pending.retry_at_ms =
          std::max(clock_.NowMs() + 1, broke_ms + BackoffMs(transfer->attempts() - 1, core::DeviceRandom()));
      retry_added_ = true;
      changed_.NotifyAll();
      return;
    }
  }
  AdviseOnBuffers();
  // It counts as running until its owner has been told and the next one is launched, so that Leave does not return
  // before.
  if (!finished) transfer->Finish(absl::CancelledError("the transfer was dropped"));
  LaunchDue();
  core::MutexLock lock(mutex_);
  transfers_.erase(Find(transfer));
  changed_.NotifyAll();
}

void GrpcLink::AdviseOnBuffers() {
  if (advised_) return;
  const std::string advice = BufferAdvice(meter_.progress(), ReadKernelBuffers());
  if (!advice.empty() && !advised_.exchange(true)) spdlog::warn("the kernel's buffers slow this link: {}", advice);
}

void GrpcLink::DropTransfers() {
  DropIf([](const Transfer&) { return true; });
}

bool GrpcLink::DropIf(const std::function<bool(const Transfer&)>& condition) {
  std::vector<std::shared_ptr<Transfer>> running;
  std::vector<std::shared_ptr<Transfer>> idle;
  {
    core::MutexLock lock(mutex_);
    for (auto pending = transfers_.begin(); pending != transfers_.end();) {
      if (!condition(*pending->transfer)) {
        ++pending;
      } else if (pending->running) {
        pending->dropped = true;
        running.push_back(pending->transfer);
        ++pending;
      } else {
        idle.push_back(pending->transfer);
        pending = transfers_.erase(pending);
      }
    }
  }
  for (const auto& transfer : running) transfer->Cancel();
  for (const auto& transfer : idle) transfer->Finish(absl::CancelledError("the transfer was dropped"));
  return !running.empty() || !idle.empty();
}

}  // namespace causeway::transport
