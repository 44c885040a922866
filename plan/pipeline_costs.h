// Costs of the parts of a model: measured by causeway-worker --profile_stages, or written by a person.
//
//   {"layers": 16,
//    "layer": {"forward_us": 1000, "input_us": 1100, "weight_us": 900},       times of a micro-batch
//    "embedding": {…}, "head": {…},
//    "layer_bytes": 76e6,          what a layer keeps of a micro-batch from F to W
//    "message_bytes": 16e6,        an activation between stages, or its gradient
//    "sequences": 1,               sequences of a micro-batch
//    "heads": 8,                   heads of keys, which tensor-parallel ranks divide
//    "layer_parameters": 7.1e6, "embedding_parameters": …, "head_parameters": …,
//    "parameter_bytes": 16,        a parameter on a device, with its gradient and what the optimizer keeps
//    "gradient_bytes": 4}          a parameter's gradient between ranks
//
// A part may have "pair_us": its forward and its whole backward, overlapping; else their sum. Keys about parameters
// may be left out where ranks hold no more than stages: then weights take no memory. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {

struct PipelineCosts {
  int layers = 0;
  StageTimes layer, embedding, head;
  double layer_bytes = 0;
  double message_bytes = 0;
  int sequences = 0, heads = 0;  // 0: not given
  double layer_parameters = 0, embedding_parameters = 0, head_parameters = 0;
  double parameter_bytes = 0, gradient_bytes = 0;
};

// INVALID_ARGUMENT names the key.
absl::StatusOr<PipelineCosts> ReadPipelineCosts(const std::string& json, const std::string& name);

// The layers of each stage, in order, so that the longest stage (all of F, I and W) is as short as possible.
// INVALID_ARGUMENT: fewer layers than stages.
absl::StatusOr<std::vector<StageLayers>> SplitLayers(const PipelineCosts& costs, int stages);

StageTimes TimesOfStage(const PipelineCosts& costs, const StageLayers& stage);
double ParametersOfStage(const PipelineCosts& costs, const StageLayers& stage);

}  // namespace causeway::plan
