// The copies of an update between host and device, and its counts on each side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "offload/device.h"
#include "offload/subgroup_plan.h"

namespace causeway::offload {

// An update's counts: subgroups on each side, and bytes moved.
struct UpdateCounts {
  int64_t device_subgroups = 0, cpu_subgroups = 0;
  int64_t to_device_bytes = 0, to_host_bytes = 0;
  int64_t early_gradient_bytes = 0;  // of these, gradients sent before backward's last range was queued

  friend bool operator==(const UpdateCounts&, const UpdateCounts&) = default;
};

// All but the early ones, which depend on backward's ranges.
UpdateCounts PlannedCounts(const SubgroupPlan& plan, GradientType gradients);

class UpdateTraffic {
 public:
  explicit UpdateTraffic(Device* device) : device_(device) {}

  void ToDevice(Queue queue, void* to, const void* from, size_t bytes) {
    now_.to_device_bytes += static_cast<int64_t>(bytes);
    device_->CopyToDevice(queue, to, from, bytes);
  }
  void ToHost(Queue queue, void* to, const void* from, size_t bytes) {
    now_.to_host_bytes += static_cast<int64_t>(bytes);
    device_->CopyToHost(queue, to, from, bytes);
  }
  void CountEarly(int64_t gradient_bytes) { now_.early_gradient_bytes += gradient_bytes; }
  void CountSubgroup(bool on_device) { ++(on_device ? now_.device_subgroups : now_.cpu_subgroups); }

  void EndUpdate() { last_ = std::exchange(now_, {}); }
  const UpdateCounts& last() const { return last_; }

 private:
  Device* const device_;
  UpdateCounts last_, now_;
};

}  // namespace causeway::offload
