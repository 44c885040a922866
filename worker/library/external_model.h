// A program's description of the model that it trains, in the form that the run needs.
//
//   model as JSON (causeway.h) ─► ExternalModel ─┬─ manifest    what the site joins with
//                                                ├─ tensors     for ExternalStore
//                                                └─ given_as    the program's own tensor indices
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
#include "formats/model_directory.h"
#include "worker/library/external_store.h"

namespace causeway::worker {

struct ExternalModel {
  core::Manifest manifest;
  std::vector<ExternalStore::Tensor> tensors;  // one for each tensor of the manifest
  std::vector<int> given_as;                   // for each tensor of the manifest, its index in the program's list
  core::SiteData data;                         // empty: the program does not declare its data
  std::vector<formats::ModelFile> files;       // needed beside the weights; empty if the run knows its model
};

// INVALID_ARGUMENT names the offending tensor and key.
absl::StatusOr<ExternalModel> ParseExternalModel(const std::string& json, const core::RunConfig& config);

// The layer and kind of a tensor, derived from its name and shape where the program does not give them: the layer is
// the integer after layers, h, blocks, block or layer; the kinds are embedding ("embed…", wte, wpe), head (lm_head,
// output), norm (one dimension), expert (three dimensions and "experts"), else matrix.
int LayerOf(const std::string& name);
core::TensorKind KindOf(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace causeway::worker
