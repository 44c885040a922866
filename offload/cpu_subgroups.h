// The host's memory for the CPU's subgroups beside their state, where the model is on a device.
//
//   gradients   |1|3|5| …    of the CPU's subgroups alone, back to back: they cross while backward goes on
//   copies      |a|b|c|      bfloat16 parameters on their way to the device, in a ring: one is written again only when
//                            the one of three subgroups before has left
//
// The CPU takes subgroups in the order in which backward has made their gradients final, from the model's end to its
// front. One owner thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "offload/device.h"
#include "offload/host_array.h"
#include "offload/subgroup_plan.h"

namespace causeway::offload {

class CpuSubgroups {
 public:
  // The pinned host memory that it takes.
  static int64_t HostBytes(const SubgroupPlan& plan, GradientType gradients);

  CpuSubgroups(const SubgroupPlan& plan, GradientType gradients, Device* device, UpdateTraffic* traffic);

  absl::Status Prepare(PinnedPool& pool);

  // The device's gradients [first, first + count) are final when what kGradients waits for is done: queues the copies
  // of the CPU's part and returns its bytes.
  int64_t Send(const void* gradients, int64_t first, int64_t count);
  // Instead of Send: only notes that they are final; SendHeld sends them.
  void Hold(int64_t first, int64_t count) { held_.emplace_back(first, count); }
  void SendHeld(const void* gradients);

  // All of the CPU's subgroups, in the order in which their last gradients were sent since the last EndUpdate.
  const std::vector<int64_t>& order() const { return order_; }

  // Waits for the gradients of subgroup i, and for a free copy: both as arrays whose first value is the subgroup's.
  // The other arrays are null.
  AdamWArrays Await(int64_t i);
  // Queues the transfer of the copy that Await gave, written by now, to the device's parameters `to`.
  void SendCopy(int64_t i, uint16_t* to);

  void EndUpdate();

 private:
  static constexpr int kCopies = 3;
  struct Subgroup {
    int64_t place = 0;    // place of its first gradient, in values
    int64_t missing = 0;  // number of gradients that have not been sent
    Device::Event gradients_here = 0;
  };

  const SubgroupPlan plan_;
  const GradientType type_;
  Device* const device_;
  UpdateTraffic* const traffic_;
  PinnedPool::Array gradients_, copies_;
  std::vector<Subgroup> subgroups_;
  std::vector<int64_t> order_;
  std::vector<std::pair<int64_t, int64_t>> held_;
  Device::Event copy_left_[kCopies] = {};
  int64_t copies_made_ = 0;
};

}  // namespace causeway::offload
