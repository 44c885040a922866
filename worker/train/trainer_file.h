// trainer.safetensors of a checkpoint: θ under the manifest's names, and the inner optimizer's state beside it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "formats/file_digest.h"
#include "worker/train/inner_optimizer.h"
#include "worker/train/tensor_values.h"

namespace causeway::worker {

// `optimizer` may be null. Load: INVALID_ARGUMENT or DATA_LOSS names what does not fit.
absl::StatusOr<formats::FileDigest> SaveTrainer(const std::string& path, const core::Manifest& manifest,
                                                const TensorValues& parameters, InnerOptimizer* optimizer);
absl::Status LoadTrainer(const std::string& path, const core::Manifest& manifest, TensorValues& parameters,
                         InnerOptimizer* optimizer);

}  // namespace causeway::worker
