// Who holds which tensor in a pipeline, and which gradients are one sum.
//
//   rank = device · width + j       the ranks of a place hold the same; a tensor's first holder is the one that is read
//
// Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "plan/pipeline_file.h"

namespace causeway::worker {

struct PipelinePlaces {
  core::Manifest manifest;                // of the whole model
  std::vector<std::vector<int>> devices;  // of each tensor: those that hold it, in their order
  std::vector<std::vector<int>> held;     // of each device: its tensors, in the manifest's order
  // Devices that have the embedding's, and the head's, part of tensor 0's gradient, where they are one tensor.
  std::vector<int> embedding_devices, head_devices;
};

// The file for this run's model in this site: its layers divided evenly where it does not say how. INVALID_ARGUMENT,
// with both: other layers, another number of micro-batches or ranks, two copies of a stage on one device.
absl::StatusOr<plan::PipelineFile> FitPipeline(plan::PipelineFile file, const std::string& name,
                                               const core::RunConfig& config, int world);

PipelinePlaces PlacesOf(const plan::PipelineFile& file, const core::LlamaConfig& config);

// Layers divided evenly, the first stages having one more.
std::vector<plan::StageLayers> EvenSplit(int layers, int stages);

}  // namespace causeway::worker
