// The part of GrpcLink that looks after transfers: launched while welcomed, and again where they broke.
#include <algorithm>

#include "transport/backoff.h"
#include "transport/grpc_link.h"

namespace causeway::transport {

void GrpcLink::Upload(UploadRequest request) { Add(MakeUpload(std::move(request))); }

void GrpcLink::Download(DownloadRequest request) { Add(MakeDownload(std::move(request))); }

void GrpcLink::Add(std::shared_ptr<Transfer> transfer) {
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

void GrpcLink::LaunchDue() {
  std::vector<std::shared_ptr<Transfer>> due;
  v1::Context context;
  {
    core::MutexLock lock(mutex_);
    if (!welcomed_ || stopping_) return;
    context = MakeContext();
    const int64_t now_ms = NowMs();
    for (Pending& pending : transfers_) {
      if (pending.running || now_ms < pending.retry_at_ms) continue;
      pending.running = true;
      due.push_back(pending.transfer);
    }
  }
  for (const std::shared_ptr<Transfer>& transfer : due) {
    v1::Coordinator::Stub& stub = *bulk_stubs_[next_bulk_++ % bulk_stubs_.size()];
    transfer->Launch(stub, context, [this, transfer](bool finished) { OnTransferEnded(transfer, finished); });
    // It may have been dropped before there was a stream to cancel.
    core::MutexLock lock(mutex_);
    const auto pending = Find(transfer);
    if (pending != transfers_.end() && (pending->dropped || stopping_ || failed_)) transfer->Cancel();
  }
}

void GrpcLink::OnTransferEnded(const std::shared_ptr<Transfer>& transfer, bool finished) {
  {
    core::MutexLock lock(mutex_);
    Pending& pending = *Find(transfer);
    if (!finished && !pending.dropped && !stopping_ && !failed_) {
      pending.running = false;
      pending.retry_at_ms = NowMs() + BackoffMs(transfer->attempts(), RandomBits());
      return;
    }
  }
  // It counts as running until its owner has been told, so that Leave does not return before.
  if (!finished) transfer->Finish(absl::CancelledError("the transfer was dropped"));
  core::MutexLock lock(mutex_);
  transfers_.erase(Find(transfer));
  changed_.notify_all();
}

void GrpcLink::DropTransfers() {
  std::vector<std::shared_ptr<Transfer>> running;
  std::vector<std::shared_ptr<Transfer>> idle;
  {
    core::MutexLock lock(mutex_);
    for (auto pending = transfers_.begin(); pending != transfers_.end();) {
      if (pending->running) {
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
}

}  // namespace causeway::transport
