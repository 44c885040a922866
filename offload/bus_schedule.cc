#include "offload/bus_schedule.h"

#include <algorithm>

#include "core/check.h"

namespace causeway::offload {

void BusSchedule::Announce(const std::vector<Range>& ranges) {
  core::MutexLock lock(mutex_);
  for (const Range& range : ranges) {
    if (range.count > 0) waiting_.insert(waiting_.begin(), range);  // behind those that are there
  }
}

void BusSchedule::Copy(absl::FunctionRef<void(const Range& piece)> copy) {
  while (true) {
    Range piece;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this] { return waiting_.empty() || !updating_ || !IsCopiedLocked(awaited_); });
      if (waiting_.empty()) return;
      piece = {waiting_.back().first, std::min(kPiece, waiting_.back().count)};
    }
    copy(piece);
    core::MutexLock lock(mutex_);
    Range& rest = waiting_.back();
    rest = {rest.first + piece.count, rest.count - piece.count};
    if (rest.count == 0) waiting_.pop_back();
    changed_.notify_all();
  }
}

void BusSchedule::BeginUpdate() {
  core::MutexLock lock(mutex_);
  CHECK(!updating_);
  updating_ = true;
}

bool BusSchedule::IsCopiedLocked(const Range& range) const {
  return std::ranges::none_of(waiting_, [&](const Range& waiting) {
    return waiting.first < range.first + range.count && range.first < waiting.first + waiting.count;
  });
}

bool BusSchedule::IsCopied(const Range& range) const {
  core::MutexLock lock(mutex_);
  return IsCopiedLocked(range);
}

void BusSchedule::AwaitCopied(const Range& range) {
  const auto begin = std::chrono::steady_clock::now();
  core::MutexLock lock(mutex_);
  if (IsCopiedLocked(range)) return;
  awaited_ = range;
  changed_.notify_all();
  lock.Wait(changed_, [&] { return IsCopiedLocked(range); });
  awaited_ = {};
  waited_s_ = waited_s_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void BusSchedule::EndUpdate() {
  core::MutexLock lock(mutex_);
  updating_ = false;
  changed_.notify_all();
}

}  // namespace causeway::offload
