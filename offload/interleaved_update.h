// The update phase of a step: AdamW over all subgroups, some on the CPU and some on the device, side by side.
//
//   backward   gradients become final, range by range ── those of CPU subgroups go to the host at once (kGradients)
//
//   kPrefetch  p,m,v of 0 ─► set A   of 2 ─► set B            of 4 ─► A     two sets of device memory: a set is filled
//   kUpdate                  AdamW(0)         AdamW(2)                      again only when it was flushed
//   kFlush                            A ─► p,m,v of 0  B ─► 2
//   CPU        AdamW(5)            AdamW(3)           AdamW(1)              with the bfloat16 copy in the same pass,
//   kParameters         copy of 5 ─► device  copy of 3 ─►                   which crosses as soon as it is made
//   kCompute                                                               goes on (forward) when both are through
//
// The sets may lie in rooms lent by the caller, which hold other data until backward no longer needs it: then a set is
// filled only after RoomIsDead, and the next forward waits until all sets are flushed.
//
// The CPU begins with the subgroups whose gradients arrived first, the model's last. The plan assigns the subgroups;
// every plan gives the same bits of p, m and v. Step may leave flushes in progress; Finish waits for them, after which
// p, m and v on the host are complete. Without a device, gradients are the caller's, on the host, and no copy is made.
//
// One owner thread. Arrays are the caller's and outlive this object; on a device they are pinned. Misuse is the
// caller's bug; an error of the device shows in the status of Step and Finish, and then the state is lost.
// Source: Deep Optimizer States (arXiv 2410.21316); k = 1 and the non-blocking flush of gradients as in its section 4.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/thread_team.h"
#include "offload/adamw.h"
#include "offload/bus_schedule.h"
#include "offload/cpu_subgroups.h"
#include "offload/device.h"
#include "offload/subgroup_plan.h"

namespace causeway::offload {

// The time of an update on a device: from its begin until its last copies have arrived on both sides, which is long
// after everything is queued. One owner thread.
class UpdateTimer {
 public:
  explicit UpdateTimer(Device* device) : device_(device) {}

  void Prepare() { begun_ = device_->MakeTimedEvent(); }

  // The update begins now; `idle` is a queue that is idle.
  void Begin(Queue idle) {
    device_->Record(begun_, idle);
    running_ = true;
  }
  // Both timed events of the update have been awaited on the host.
  void End(Device::Event one, Device::Event other) {
    if (!std::exchange(running_, false)) return;
    seconds_ = std::max(device_->SecondsBetween(begun_, one), device_->SecondsBetween(begun_, other));
  }

  // The seconds of the last update that has ended; returned once for each.
  std::optional<double> TakeSeconds() { return std::exchange(seconds_, std::nullopt); }

 private:
  Device* const device_;
  Device::Event begun_ = 0;
  bool running_ = false;
  std::optional<double> seconds_;
};

// Arrays on the host, of equal sizes: the plan's number of parameters.
struct HostState {
  std::span<float> parameters, first_moment, second_moment;
};

// The arrays of all the plan's parameters in device memory.
struct DeviceModel {
  const void* gradients = nullptr;  // written by backward
  GradientType gradient_type = GradientType::kBfloat16;
  uint16_t* parameters = nullptr;  // bfloat16: forward computes with these
  PinnedPool* pool = nullptr;      // host memory for gradients and copies; outlives the update
  // Rooms for the buffer sets, each of InterleavedUpdate::SetBytes; null: the update allocates its own memory.
  std::array<void*, 2> rooms = {};
  // Not set only for comparison: that work is then done in the update, as in ZeRO-Offload.
  bool early_gradients = true;  // gradients of CPU subgroups go to the host during backward
  bool copy_in_pass = true;     // the CPU's AdamW writes the bfloat16 copy
};

class InterleavedUpdate {
 public:
  static constexpr int kBufferSets = 2;

  // The device memory that one buffer set takes.
  static size_t SetBytes(const SubgroupPlan& plan);
  // The pinned host memory beside the state: 4 bytes for each of the CPU's parameters where gradients are float32.
  static int64_t HostBytes(const SubgroupPlan& plan, GradientType gradients) {
    return CpuSubgroups::HostBytes(plan, gradients);
  }

  // An update on the CPU alone.
  InterleavedUpdate(const HostState& state, std::vector<DecaySegment> segments, const SubgroupPlan& plan,
                    core::ThreadTeam* team, BusSchedule* bus);
  // Takes host memory and two buffer sets: RESOURCE_EXHAUSTED says how much did not fit.
  static absl::StatusOr<std::unique_ptr<InterleavedUpdate>> OnDevice(const HostState& state,
                                                                     std::vector<DecaySegment> segments,
                                                                     const SubgroupPlan& plan, core::ThreadTeam* team,
                                                                     BusSchedule* bus, Device* device,
                                                                     const DeviceModel& model);
  ~InterleavedUpdate();

  // Backward has queued, on kCompute, the work that makes the gradients of this range final. Does not block. To be
  // called once for each value of the plan before each Step, in any order.
  void GradientsReady(int64_t first, int64_t count);

  // Backward has queued, on kCompute, the last that it does with the memory of the next room, counted from the first.
  // Does not block.
  void RoomIsDead();

  // Step t, counted from 1. `gradients` are on the host, for an update without a device; empty where v is frozen, and
  // only p moves. Segments that do not decay take weight 0.
  absl::Status Step(const AdamWParameters& parameters, int64_t t, std::span<const float> gradients = {});

  absl::Status Finish();

  // The last update's seconds; empty until another update has been waited for, by Finish or the next Step.
  std::optional<double> TakeSeconds() { return timer_.TakeSeconds(); }

  const SubgroupPlan& plan() const { return plan_; }
  const UpdateCounts& counts() const { return traffic_.last(); }  // counts of the last update on a device

 private:
  // Device memory for one subgroup's state, and its progress.
  struct BufferSet {
    void* memory = nullptr;
    float* parameters = nullptr;
    float* first_moment = nullptr;
    float* second_moment = nullptr;
    Device::Event arrived = 0, updated = 0, flushed = 0;
  };
  struct Events {
    Device::Event gradients_final = 0;  // backward has done all that was queued so far
    Device::Event room_dead = 0;        // the same, for prefetches to await
    Device::Event updated = 0;          // all subgroups of the device are updated
    Device::Event flushed = 0;          // their state is back on the host
    Device::Event parameters_ready = 0;
  };
  // The progress of the backward pass before the next update.
  struct Backward {
    int64_t gradients_ready = 0;  // number of values whose gradients are final
    int64_t prefetched = 0;       // how many of the device's subgroups are prefetched
    int64_t free_sets = 0;        // number of sets that may be filled
  };
  struct Constants {
    AdamWConstants decays, plain;
    const AdamWConstants& Of(bool decaying) const { return decaying ? decays : plain; }
  };

  InterleavedUpdate(const HostState& state, std::vector<DecaySegment> segments, const SubgroupPlan& plan,
                    core::ThreadTeam* team, BusSchedule* bus, Device* device, const DeviceModel& model);
  absl::Status Prepare();
  BusSchedule::Range RangeOf(int64_t subgroup) const { return {plan_.First(subgroup), plan_.Size(subgroup)}; }
  BufferSet& SetOf(int64_t subgroup) { return sets_[subgroup / plan_.k % kBufferSets]; }
  bool has_rooms() const { return model_.rooms[0] != nullptr; }
  void PrefetchFree();
  absl::Status BeginOnDevice();
  void UpdateAll(std::span<const float> gradients, const Constants& constants);
  absl::Status EndOnDevice();
  void Prefetch(int64_t subgroup);
  void UpdateOnDevice(int64_t subgroup, const Constants& constants);
  void UpdateOnCpu(int64_t subgroup, std::span<const float> gradients, const Constants& constants);

  const HostState state_;
  const DecaySegments segments_;
  const SubgroupPlan plan_;
  core::ThreadTeam* const team_;
  BusSchedule* const bus_;
  Device* const device_ = nullptr;
  const DeviceModel model_;
  BufferSet sets_[kBufferSets];
  Events events_;
  Backward backward_;
  UpdateTraffic traffic_;
  CpuSubgroups on_cpu_;
  UpdateTimer timer_;
};

}  // namespace causeway::offload
