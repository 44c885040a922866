// The values of a model that trains on a device: parameters, gradients, moments, and where each lies.
//
//   on the device   gradients, with those of a tied head after them; parameters as the model computes with them;
//                   p, m, v of the first `resident` values
//   on the host     p, m, v of the others (worker/optimizer/hosted_state.h)
//
// Arrays are flat, in manifest order. One owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "offload/subgroup_plan.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/device/staged_copies.h"
#include "worker/model/gpu_llama.h"
#include "worker/optimizer/hosted_state.h"

namespace causeway::worker {

// Decides where a device's trainer keeps the optimizer's state, and how much it recomputes, so that everything fits.
//
//   |p m v of the first values: on the device|those of the others: on the host, updated by subgroups (offload/)|
//                                            └ resident
//
// `offload.k: auto` keeps all of it on the device if there is room at some level of recomputation; else as many
// subgroups as fit, and k for the others comes from measured bandwidths (offload/subgroup_plan.h). No choice changes a
// bit of θ. Pure, except for the calibration.
struct Residency {
  int64_t resident = 0;        // values whose state lies on the device, the first ones
  offload::SubgroupPlan plan;  // for the other values
  Recompute recompute = Recompute::kNone;
  std::string reason;  // for people

  int64_t hosted() const { return plan.parameters; }
};

struct ResidencyNeeds {
  int64_t parameters = 0;
  ValueType type = ValueType::kFloat32;
  int64_t free_bytes = 0;              // free device memory
  std::optional<Recompute> recompute;  // none: the first for which there is memory
  int64_t evaluation_bytes = 0;        // device memory that evaluations will take
  // The bytes of the model, without the optimizer, with rooms of that size.
  std::function<absl::StatusOr<int64_t>(Recompute recompute, int64_t room_bytes)> model_bytes;
  std::function<offload::Bandwidths()> bandwidths;  // called only if needed
};

// INVALID_ARGUMENT: the run's settings do not fit this device. Whether everything fits shows only at allocation.
absl::StatusOr<Residency> ChooseResidency(const core::RunConfig& config, const ResidencyNeeds& needs);

class DeviceState {
 public:
  struct Setting {
    core::Manifest manifest;
    ValueType type = ValueType::kFloat32;  // the model's compute type
    int moments = 2;                       // 0: none
    Residency residency;
    GpuLlama::Rooms rooms;
    offload::PinnedPool* pool = nullptr;  // memory for the host's part, and for copies
    int64_t more_gradients = 0;           // beyond the manifest's: a stage's tied head
    bool overlaps = true;                 // false: as ZeRO-Offload, gradients and copies in the update, for comparison
  };

  // RESOURCE_EXHAUSTED: memory. The backend outlives it.
  static absl::StatusOr<std::unique_ptr<DeviceState>> Make(const Setting& setting, ComputeBackend* backend);

  int64_t count() const { return count_; }
  int64_t resident() const { return resident_; }
  int64_t First(int tensor) const { return firsts_[tensor]; }
  HostedState* hosted() const { return hosted_.get(); }  // state of the values that are not resident; null: none
  const Arena& arena() const { return arena_; }
  StagedCopies& copies() { return copies_; }  // for other values

  // Arrays in device memory; parameters and moments are those of the resident values alone.
  float* parameters() const { return arena_.At<float>(parameters_); }
  float* gradients() const { return arena_.At<float>(gradients_); }
  std::span<float> all_gradients() const { return {gradients(), static_cast<size_t>(count_ + more_gradients_)}; }
  // The parameters that the model computes with: these, or a copy in bfloat16, which updates and Changed maintain.
  void* computed() const { return arena_.At<char>(computed_); }
  uint16_t* bfloat16_copy() const { return type_ == ValueType::kFloat32 ? nullptr : arena_.At<uint16_t>(computed_); }
  float* moments(int which) const { return arena_.At<float>(moments_[which]); }

  // To be called after other code has changed these parameters; for those on the host, after Await.
  absl::Status Changed(int64_t first, int64_t count);

  absl::Status Await();  // all that is queued

  // Read values from `first` on to the host, and wait for them; write all values from there, which may change then.
  absl::Status ReadParameters(int64_t first, std::span<float> to) { return Read(Parameters(), first, to); }
  absl::Status WriteParameters(std::span<const float> from);
  absl::Status ReadMoments(int which, std::span<float> to) { return Read(Moments(which), 0, to); }
  absl::Status WriteMoments(int which, std::span<const float> from) { return Write(from, Moments(which)); }

 private:
  // An array, one value for each parameter: where its first values lie, and the others.
  struct Placed {
    float* device = nullptr;
    std::span<float> host;
  };

  DeviceState(const Setting& setting, ComputeBackend* backend);

  absl::Status Host(const Setting& setting);
  Placed Parameters() const;
  Placed Moments(int which) const;
  absl::Status Read(const Placed& array, int64_t first, std::span<float> to);
  absl::Status Write(std::span<const float> from, const Placed& array);

  const ValueType type_;
  ComputeBackend* const backend_;
  const std::vector<int64_t> firsts_;
  const int64_t count_, resident_, more_gradients_;
  Arena arena_;
  Arena::Place parameters_ = 0, gradients_ = 0, computed_ = 0, moments_[2] = {};
  offload::Device::Event done_;
  std::unique_ptr<HostedState> hosted_;
  StagedCopies copies_;
};

}  // namespace causeway::worker
