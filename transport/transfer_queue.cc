#include "transport/transfer_queue.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/limits.h"
#include "transport/answers.h"
#include "transport/backoff.h"

namespace causeway::transport {

constexpr int64_t kForeignMs = 60'000;

void TransferQueue::Add(std::shared_ptr<Transfer> transfer) { pending_.push_back({.transfer = std::move(transfer)}); }

std::list<TransferQueue::Pending>::iterator TransferQueue::Find(const Transfer& transfer) {
  return std::ranges::find_if(pending_, [&](const Pending& pending) { return pending.transfer.get() == &transfer; });
}

bool TransferQueue::MayLaunch(const Pending& pending, int64_t now_ms) const {
  if (pending.running || now_ms < pending.retry_at_ms) return false;
  if (!pending.transfer->is_upload()) return true;
  bool earlier = true;
  for (const Pending& other : pending_) {
    if (&other == &pending) earlier = false;
    if (other.writing || (earlier && !other.running && other.transfer->is_upload())) return false;
  }
  return true;
}

TransferQueue::Transfers TransferQueue::TakeDue(int64_t now_ms) {
  Transfers due;
  for (Pending& pending : pending_) {
    if (!MayLaunch(pending, now_ms)) continue;
    pending.running = true;
    pending.writing = pending.transfer->is_upload();
    due.push_back(pending.transfer);
  }
  return due;
}

TransferQueue::Transfers TransferQueue::Running() const {
  Transfers running;
  for (const Pending& pending : pending_) {
    if (pending.running) running.push_back(pending.transfer);
  }
  return running;
}

void TransferQueue::Written(const Transfer& transfer) {
  const auto pending = Find(transfer);
  if (pending != pending_.end()) pending->writing = false;
}

bool TransferQueue::Ended(const Transfer& transfer) {
  const auto pending = Find(transfer);
  CHECK(pending != pending_.end() && pending->running);
  pending->writing = false;
  return !pending->dropped;
}

void TransferQueue::Retry(const Transfer& transfer, int attempts, int64_t broke_ms, int64_t now_ms, uint64_t random) {
  const auto pending = Find(transfer);
  CHECK(pending != pending_.end() && pending->running);
  pending->running = false;
  if (attempts <= 1 || pending->failed.empty()) pending->failing_ms = now_ms;
  pending->failed = transfer.WhyItBroke();
  if (IsOfNoCoordinator(pending->failed)) {
    if (now_ms - foreign_.last_ms > kForeignMs) foreign_.attempts = 0;
    foreign_ = {.attempts = foreign_.attempts + 1, .last_ms = now_ms, .why = pending->failed};
  }
  // Never equal to now: so the link's thread can tell a future retry from one that it has seen.
  pending->retry_at_ms = std::max(now_ms + 1, broke_ms + BackoffMs(attempts - 1, random));
  retry_added_ = true;
}

std::string TransferQueue::Failing(int64_t now_ms) const {
  constexpr int64_t kFailsForMs = 10'000;
  constexpr int kSeveral = 3;
  for (const Pending& pending : pending_) {
    const bool fails = !pending.failed.empty() && pending.transfer->attempts() >= kSeveral;
    if (fails && now_ms - pending.failing_ms >= kFailsForMs) return pending.failed;
  }
  return foreign_.attempts >= kSeveral && now_ms - foreign_.last_ms <= kForeignMs ? foreign_.why : "";
}

void TransferQueue::Remove(const Transfer& transfer) {
  const auto pending = Find(transfer);
  CHECK(pending != pending_.end());
  pending_.erase(pending);
}

TransferQueue::Dropped TransferQueue::DropIf(const std::function<bool(const Transfer&)>& condition) {
  Dropped dropped;
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    if (!condition(*pending->transfer)) {
      ++pending;
    } else if (pending->running) {
      pending->dropped = true;
      dropped.running.push_back(pending->transfer);
      ++pending;
    } else {
      dropped.idle.push_back(pending->transfer);
      pending = pending_.erase(pending);
    }
  }
  return dropped;
}

bool TransferQueue::IsDropped(const Transfer& transfer) const {
  return std::ranges::any_of(
      pending_, [&](const Pending& pending) { return pending.transfer.get() == &transfer && pending.dropped; });
}

int64_t TransferQueue::MsToLook(int64_t looked_ms) const {
  int64_t wait_ms = core::kFirstBackoffMs;
  for (const Pending& pending : pending_) {
    if (pending.running || pending.retry_at_ms <= looked_ms) continue;
    wait_ms = std::min(wait_ms, pending.retry_at_ms - looked_ms);
  }
  return wait_ms;
}

bool TransferQueue::TakeRetryAdded() { return std::exchange(retry_added_, false); }

}  // namespace causeway::transport
