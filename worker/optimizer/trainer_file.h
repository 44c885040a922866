// trainer.safetensors of a checkpoint: θ under the manifest's names, and the inner optimizer's state beside it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "formats/file_digest.h"
#include "formats/safetensors.h"
#include "worker/model/tensor_values.h"

namespace causeway::worker {

// An inner optimizer's part of the file. Names and meanings do not depend on where the state lies.
class OptimizerState {
 public:
  virtual ~OptimizerState() = default;

  // The values stay until Saved.
  virtual absl::Status AppendState(std::vector<formats::TensorData>& tensors,
                                   std::map<std::string, std::string>& metadata) = 0;
  virtual void Saved() = 0;
  virtual absl::Status LoadState(const formats::SafetensorsFile& file) = 0;
};

// `optimizer` may be null. Load: INVALID_ARGUMENT or DATA_LOSS names what does not fit.
absl::StatusOr<formats::FileDigest> SaveTrainer(const std::string& path, const core::Manifest& manifest,
                                                const TensorValues& parameters, OptimizerState* optimizer);
absl::Status LoadTrainer(const std::string& path, const core::Manifest& manifest, TensorValues& parameters,
                         OptimizerState* optimizer);

// A whole tensor at rank 0, of a trainer whose ranks hold parts.
struct GatheredTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
// The metadata are the optimizer's.
absl::StatusOr<formats::FileDigest> SaveGathered(const std::string& path, const std::vector<GatheredTensor>& gathered,
                                                 OptimizerState& optimizer);

}  // namespace causeway::worker
