// Encodes the contributions of an external site whose θ lies on a CUDA device there, with
// worker/device/device_encoder.h.
#pragma once

#include "core/run_config.h"
#include "worker/library/external_model.h"
#include "worker/library/external_store.h"

namespace causeway::worker {

// To be called before the site joins. UNAVAILABLE: the library was built without CUDA, or there is no such device.
// INVALID_ARGUMENT: θ is not float32.
absl::Status EncodeOnCuda(int device, const core::RunConfig& config, const ExternalModel& model, ExternalStore* store);

}  // namespace causeway::worker
