// The holders of each tensor in a pipeline, and the gradients that form one sum.
//
//   rank = device · width + j       the j-th of a place; a tensor's first holder is the one that is read
//
// With `width N copies` the ranks of a place hold the same; with `shards` each tensor of a place lies on one of them.
// Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "plan/pipeline_file.h"
#include "worker/model/llama_stage.h"

namespace causeway::worker {

struct PipelinePlaces {
  core::Manifest manifest;               // the whole model's
  int width = 1;                         // ranks of each place
  std::vector<std::vector<int>> ranks;   // for each tensor: the ranks that hold it, in order
  std::vector<std::vector<int>> held;    // for each rank: its tensors, in the manifest's order
  std::vector<std::vector<int>> stages;  // for each stage: its gradients, as LlamaStage indexes them
  std::vector<int> owner;  // for each of these gradients: the rank of a place that has it, where the place has shards
  // The devices with the embedding's, and the head's, part of tensor 0's gradient, where the two are one tensor.
  std::vector<int> embedding_devices, head_devices;

  bool tied() const { return !head_devices.empty(); }
};

StageRange RangeOf(const plan::StageLayers& layers);

// The program of a single device that holds the whole model, on each of `width` ranks: F and B of one micro-batch after
// the other.
plan::PipelineFile OneStageProgram(const core::LlamaConfig& config, int64_t micro_batches, int width);

// The file for this run's model at this site: its layers divided evenly if it does not say how. INVALID_ARGUMENT, with
// both values: other layers, another number of micro-batches or ranks, two copies of a stage on one device; shards of a
// schedule that gathers none.
absl::StatusOr<plan::PipelineFile> FitPipeline(plan::PipelineFile file, const std::string& name,
                                               const core::RunConfig& config, int world);

// The tensors that a rank holds.
core::Manifest HeldManifest(const PipelinePlaces& places, int rank);
// Where each tensor of the model begins in an array of the rank's tensors; after the last: where they end.
std::vector<int64_t> HeldFirsts(const PipelinePlaces& places, int rank);

PipelinePlaces PlacesOf(const plan::PipelineFile& file, const core::LlamaConfig& config);

// Layers divided evenly, the first stages having one more.
std::vector<plan::StageLayers> EvenSplit(int layers, int stages);

}  // namespace causeway::worker
