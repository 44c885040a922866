// Contributions of an external site whose θ lies on a CUDA device: encoded there, by worker/gpu/device_encoder.h.
#pragma once

#include "core/run_config.h"
#include "worker/site/external_model.h"
#include "worker/site/external_store.h"

namespace causeway::worker {

// Before the site joins. UNAVAILABLE: a library without CUDA, or no such device. INVALID_ARGUMENT: θ that is not
// float32.
absl::Status EncodeOnCuda(int device, const core::RunConfig& config, const ExternalModel& model, ExternalStore* store);

}  // namespace causeway::worker
