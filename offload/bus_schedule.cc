#include "offload/bus_schedule.h"

#include <algorithm>

#include "core/check.h"
#include "core/clock.h"

namespace causeway::offload {

int64_t BusSchedule::Announce(const std::vector<Range>& ranges) {
  core::MutexLock lock(mutex_);
  const int64_t ticket = tickets_++;
  for (const Range& range : ranges) {
    if (range.count > 0) waiting_.push_back({ticket, range});
  }
  return ticket;
}

std::vector<BusSchedule::Waiting>::iterator BusSchedule::Next(int64_t ticket) {
  return std::ranges::find(waiting_, ticket, &Waiting::ticket);
}

void BusSchedule::Copy(int64_t ticket, absl::FunctionRef<void(const Range& piece)> copy) {
  while (true) {
    Range piece;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return Next(ticket) == waiting_.end() || !updating_ || !IsCopiedLocked(awaited_);
      });
      const auto next = Next(ticket);
      if (next == waiting_.end()) return;
      piece = {next->range.first, std::min(kPiece, next->range.count)};
    }
    copy(piece);
    core::MutexLock lock(mutex_);
    const auto next = Next(ticket);  // searched anew: others were announced meanwhile
    next->range = {piece.first + piece.count, next->range.count - piece.count};
    if (next->range.count == 0) waiting_.erase(next);
    changed_.NotifyAll();
  }
}

void BusSchedule::BeginUpdate() {
  core::MutexLock lock(mutex_);
  CHECK(!updating_);
  updating_ = true;
}

bool BusSchedule::IsCopiedLocked(const Range& range) const {
  return std::ranges::none_of(waiting_, [&](const Waiting& waiting) {
    return waiting.range.first < range.first + range.count && range.first < waiting.range.first + waiting.range.count;
  });
}

bool BusSchedule::IsCopied(const Range& range) const {
  core::MutexLock lock(mutex_);
  return IsCopiedLocked(range);
}

void BusSchedule::AwaitCopied(const Range& range) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  core::MutexLock lock(mutex_);
  if (IsCopiedLocked(range)) return;
  awaited_ = range;
  changed_.NotifyAll();
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsCopiedLocked(range); });
  awaited_ = {};
  waited_s_ = waited_s_ + core::SystemClock().SecondsSince(begin);
}

void BusSchedule::EndUpdate() {
  core::MutexLock lock(mutex_);
  updating_ = false;
  changed_.NotifyAll();
}

}  // namespace causeway::offload
