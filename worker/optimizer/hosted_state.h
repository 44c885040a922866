// AdamW's state in pinned host memory, for a model whose gradients and bfloat16 parameters lie on a device: updated by
// subgroups on both sides at once (offload/interleaved_update.h).
//
// Values are counted from the first hosted one, except in GradientsQueued. On the host the arrays are complete after
// Finish. One owner thread, except for copies that the bus schedule admits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/thread_team.h"
#include "offload/interleaved_update.h"
#include "worker/model/gpu_llama.h"

namespace causeway::worker {

inline constexpr char kNoHostMemory[] = "the host has no room for the optimizer's state";

// RESOURCE_EXHAUSTED, with a message that begins so: the host has less memory than p, m, v and what lies beside them
// take, all of it pinned.
absl::Status CheckHostMemory(const offload::SubgroupPlan& plan, int64_t usable_bytes);

class HostedState {
 public:
  // All values of a model, of which those from `first` on are hosted.
  struct Model {
    int64_t first = 0, count = 0;
    float* gradients = nullptr;
    uint16_t* computed = nullptr;
    GpuLlama::Rooms rooms;
    bool early_gradients = true, copy_in_pass = true;  // as in offload::DeviceModel
  };

  // RESOURCE_EXHAUSTED: memory of either side. Pool and device outlive it.
  static absl::StatusOr<std::unique_ptr<HostedState>> Make(std::vector<offload::DecaySegment> segments,
                                                           const offload::SubgroupPlan& plan, const Model& model,
                                                           offload::PinnedPool* pool, offload::Device* device);
  ~HostedState();

  std::span<float> parameters() const { return arrays_[0].Values<float>(); }
  std::span<float> moments(int which) const { return arrays_[1 + which].Values<float>(); }
  offload::BusSchedule& bus() { return bus_; }
  core::ThreadTeam& team() { return team_; }  // for the owner thread, between two steps

  // Backward has queued the work that makes the model's gradients from value `first` on final; called from the end to
  // the front.
  void GradientsQueued(int64_t first);
  absl::Status Step(const offload::AdamWParameters& adamw, int64_t t);
  absl::Status Finish();

  core::OffloadProgress progress() const;
  double last_update_s() const { return last_s_; }  // duration of the last update known to have ended; 0: none

 private:
  HostedState(const offload::SubgroupPlan& plan, const Model& model);

  void TakeTime();

  const Model model_;
  core::ThreadTeam team_;
  offload::BusSchedule bus_;
  offload::PinnedPool::Array arrays_[3];  // p, m, v
  int64_t queued_from_;                   // this step's gradients are queued from here on
  size_t dead_rooms_ = 0;                 // rooms that are dead in this step
  std::unique_ptr<offload::InterleavedUpdate> update_;
  double measured_s_ = 0;  // the mean duration of recent updates
  double last_s_ = 0;
};

}  // namespace causeway::worker
