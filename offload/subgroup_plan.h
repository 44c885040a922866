// The subgroups of the optimizer's state that are updated on the device: every k-th, with k from a model of the
// machine.
//
//   |0: device|1: CPU|2: device|3: CPU|4: device|5: tail, CPU|          k = 2, six subgroups
//
// The update of P parameters, of which a share s is updated on the device, takes as long as its slowest resource
// (R devices share one host):
//
//   host memory          P (c (1−s) + 24 s) / dram
//   the bus, to device   (P/R) (12 s + 2 (1−s)) / h2d
//   the bus, to host     (P/R) 12 s / d2h
//   the bus, both ways   (P/R) (24 s + 2 (1−s)) / both
//   CPU                  (P/R) (1−s) / cpu
//
// c = 32 bytes: Adam 28, its bfloat16 copy 2 in the same pass, the copy's way over the bus 2; 36 where the copy is a
// pass of its own. 24 bytes: p, m, v are read and written by the bus.
//
// With `subgroup` the model is finer: a pipeline of whole subgroups fills and drains, so that the terms of the bus
// include one subgroup's way in the other direction; and the CPU has the memory bandwidth left by the bus while that
// lasts, and all of it afterwards.
//
// s = 1/k; k = 1 streams everything through the device, and without a device, or with k = cpu, s is 0. A plan never
// changes a bit of the result. Pure, thread-safe.
// Source: Deep Optimizer States (arXiv 2410.21316) section 4; the host memory term is from its published logs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/run_config.h"
#include "offload/device.h"

namespace causeway::offload {

// The bandwidths of one worker's share of the machine; offload/calibration.h measures them.
struct Bandwidths {
  double dram = 0;       // bytes a second of host memory in an update
  double to_device = 0;  // bytes a second; 0: there is no device
  double to_host = 0;
  double both_ways = 0;       // the sum of both directions at once; 0: they do not slow each other
  double cpu_parameters = 0;  // parameters a second that the CPU updates

  friend bool operator==(const Bandwidths&, const Bandwidths&) = default;
};

// Host memory traffic, in bytes a parameter.
struct HostTraffic {
  double on_cpu = 32;
  double on_device = 24;
};
inline constexpr HostTraffic kSeparateCopyTraffic = {.on_cpu = 36, .on_device = 24};  // the reference implementation's

// The limit for `auto`: beyond it the device does less than 2 % of the work.
inline constexpr int64_t kLargestInterleave = 64;

// Returns seconds. `device_share` is s; a rate of 0 is no bound. `devices` is R. `subgroup`: values of a subgroup; 0:
// without filling and draining.
double PredictUpdate(int64_t parameters, double device_share, const Bandwidths& bandwidths, int64_t subgroup = 0,
                     int devices = 1, const HostTraffic& traffic = {});

struct SubgroupPlan {
  int64_t parameters = 0;
  int64_t subgroup = 0;         // values of each but the last, which may have fewer
  int64_t k = core::kAllOnCpu;  // subgroups i with i mod k = 0 are the device's; kAllOnCpu: none
  double predicted_s = 0;       // time of an update; 0: unknown
  std::string reason;           // why this k, for people

  int64_t num_subgroups() const { return (parameters + subgroup - 1) / subgroup; }
  int64_t First(int64_t i) const { return i * subgroup; }
  int64_t Size(int64_t i) const { return std::min(subgroup, parameters - First(i)); }
  bool OnDevice(int64_t i) const { return k != core::kAllOnCpu && i % k == 0; }
  double DeviceShare() const;  // share of the parameters that are the device's
};

// The plan with the config's k, on a device.
SubgroupPlan GivenPlan(const core::OffloadConfig& config, int64_t parameters, const Bandwidths& bandwidths);

// The plan with the config's k, or for `auto` the fastest by prediction; of equals the larger k, which spares the bus.
SubgroupPlan PlanSubgroups(const core::OffloadConfig& config, int64_t parameters, const Bandwidths& bandwidths);

// The copies of an update between host and device, and its counts on each side.

// An update's counts: subgroups on each side, and bytes moved.
struct UpdateCounts {
  int64_t device_subgroups = 0, cpu_subgroups = 0;
  int64_t to_device_bytes = 0, to_host_bytes = 0;
  int64_t early_gradient_bytes = 0;  // gradients among to_host_bytes sent before backward's last range was queued

  friend bool operator==(const UpdateCounts&, const UpdateCounts&) = default;
};

// All counts but early_gradient_bytes, which depends on backward's ranges.
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
