// Where a device's trainer keeps the optimizer's state, and how much it computes again, so that all of it fits.
//
//   |p m v of the first values: on the device|those of the others: on the host, updated by subgroups (offload/)|
//                                            └ resident
//
// `offload.k: auto` keeps all of it on the device where there is room for that at some level of recomputation; else as
// many subgroups as fit, and k for the others comes from measured bandwidths (offload/subgroup_plan.h). No choice
// changes a bit of θ. Pure, but for the calibration.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "offload/subgroup_plan.h"
#include "worker/gpu/gpu_llama.h"

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
  // The model takes, beside the optimizer, with rooms of that size.
  std::function<absl::StatusOr<int64_t>(Recompute recompute, int64_t room_bytes)> model_bytes;
  std::function<offload::Bandwidths()> bandwidths;  // asked for where they matter
};

// INVALID_ARGUMENT: the run's settings cannot be on this device. Whether all of it fits shows when it is allocated.
absl::StatusOr<Residency> ChooseResidency(const core::RunConfig& config, const ResidencyNeeds& needs);

}  // namespace causeway::worker
