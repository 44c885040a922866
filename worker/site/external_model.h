// What a program says of the model that it trains, as the run needs it.
//
//   model as JSON (causeway.h) ─► ExternalModel ─┬─ manifest    what the site joins with
//                                                ├─ tensors     for ExternalStore
//                                                └─ given_as    the program's own numbers of them
//
// Where the run knows its model from its config (kinds llama and synthetic), the program may list its tensors in any
// order, and the manifest is the run's. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data_fingerprint.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "worker/site/external_store.h"

namespace causeway::worker {

struct ExternalModel {
  core::Manifest manifest;
  std::vector<ExternalStore::Tensor> tensors;  // of each of the manifest's
  std::vector<int> given_as;                   // index in the program's list of each of the manifest's
  core::SiteData data;                         // empty: it does not say what it trains on
};

// INVALID_ARGUMENT names the tensor and the key that are not as expected.
absl::StatusOr<ExternalModel> ParseExternalModel(const std::string& json, const core::RunConfig& config);

// What a tensor's name and shape say of it where the program does not: the integer after layers, h, blocks, block or
// layer, and "embed…", wte, wpe; lm_head, output; one dimension: norm; three and "experts": expert; else matrix.
int LayerOf(const std::string& name);
core::TensorKind KindOf(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace causeway::worker
