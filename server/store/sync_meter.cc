#include "server/store/sync_meter.h"

#include <algorithm>
#include <chrono>

namespace causeway::server {
namespace {

constexpr std::chrono::seconds kTurn(30);

double Seconds(core::Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

absl::Status SyncMeter::Time(const std::function<absl::Status()>& sync) {
  const core::Clock::TimePoint begun = clock_.Now();
  {
    const core::MutexLock lock(mutex_);
    begun_ = begun;
  }
  absl::Status status = sync();
  const core::MutexLock lock(mutex_);
  const core::Clock::TimePoint now = clock_.Now();
  begun_.reset();
  Turn(now);
  slowest_s_[0] = std::max(slowest_s_[0], Seconds(now - begun));
  seconds_ += Seconds(now - begun);
  ++count_;
  return status;
}

SyncFigures SyncMeter::figures() const {
  const core::MutexLock lock(mutex_);
  const core::Clock::TimePoint now = clock_.Now();
  Turn(now);
  double slowest_s = std::max(slowest_s_[0], slowest_s_[1]);
  if (begun_) slowest_s = std::max(slowest_s, Seconds(now - *begun_));
  return {.count = count_, .seconds = seconds_, .slowest_s = slowest_s};
}

void SyncMeter::Turn(core::Clock::TimePoint now) const {
  if (now < turned_ + kTurn) return;
  slowest_s_ = {0, now < turned_ + 2 * kTurn ? slowest_s_[0] : 0};
  turned_ = now;
}

}  // namespace causeway::server
