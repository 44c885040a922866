// Decides where a device's trainer keeps the optimizer's state, and how much it recomputes, so that everything fits.
//
//   |p m v of the first values: on the device|those of the others: on the host, updated by subgroups (offload/)|
//                                            └ resident
//
// `offload.k: auto` keeps all of it on the device if there is room at some level of recomputation; else as many
// subgroups as fit, and k for the others comes from measured bandwidths (offload/subgroup_plan.h). No choice changes a
// bit of θ. Pure, except for the calibration.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "offload/subgroup_plan.h"
#include "worker/model/gpu_llama.h"

namespace causeway::worker {

struct Residency {
  int64_t resident = 0;        // values whose state lies on the device, the first ones
  offload::SubgroupPlan plan;  // of the others
  Recompute recompute = Recompute::kNone;
  std::string reason;  // for people

  int64_t hosted() const { return plan.parameters; }
};

struct ResidencyNeeds {
  int64_t parameters = 0;
  ValueType type = ValueType::kFloat32;
  int64_t free_bytes = 0;              // of device memory
  std::optional<Recompute> recompute;  // none: the first for which there is memory
  int64_t evaluation_bytes = 0;        // of device memory, later
  // The bytes of the model, without the optimizer, with rooms of that size.
  std::function<absl::StatusOr<int64_t>(Recompute recompute, int64_t room_bytes)> model_bytes;
  std::function<offload::Bandwidths()> bandwidths;  // called only if needed
};

// INVALID_ARGUMENT: the run's settings do not fit this device. Whether everything fits shows only at allocation.
absl::StatusOr<Residency> ChooseResidency(const core::RunConfig& config, const ResidencyNeeds& needs);

}  // namespace causeway::worker
