// The time of an update on a device: from its begin until its last copies have arrived on both sides, which is long
// after everything is queued. One owner thread.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "offload/device.h"

namespace causeway::offload {

class UpdateTimer {
 public:
  explicit UpdateTimer(Device* device) : device_(device) {}

  void Prepare() { begun_ = device_->MakeTimedEvent(); }

  // On a queue that is idle: the update begins now.
  void Begin(Queue idle) {
    device_->Record(begun_, idle);
    running_ = true;
  }
  // Both timed events of the update have been awaited on the host.
  void End(Device::Event one, Device::Event other) {
    if (!std::exchange(running_, false)) return;
    seconds_ = std::max(device_->SecondsBetween(begun_, one), device_->SecondsBetween(begun_, other));
  }

  // The last update that has ended; once for each.
  std::optional<double> TakeSeconds() { return std::exchange(seconds_, std::nullopt); }

 private:
  Device* const device_;
  Device::Event begun_ = 0;
  bool running_ = false;
  std::optional<double> seconds_;
};

}  // namespace causeway::offload
