// The stages of a model on one device of a pipeline, on any processor.
//
//   BeginStep(batch) ─► the operations of the schedule ─► EndStep: gradients are the sums over micro-batches, in host
//                                                         memory
//
// Implementations: LlamaStages, on the processor; worker/parallel/gpu_stages.h. One owner thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/llama_config.h"
#include "plan/pipeline_file.h"
#include "worker/model/llama_stage.h"
#include "worker/parallel/sharded_tensors.h"
#include "worker/parallel/stage_runner.h"

namespace causeway::worker {

class ModelStages : public StageRunner {
 public:
  virtual int64_t message_values() const = 0;

  // With the weights as they are now. `batch` has all micro-batches, of which copy c has the c-th share; `scale`: of
  // each one's mean loss.
  virtual absl::Status BeginStep(const Batch& batch, float scale) = 0;
  // Errors of the device, if it has one.
  virtual absl::Status EndStep() = 0;
  virtual double loss() const = 0;  // this device's part of the mean loss, after EndStep
};

// The parts from which stages are made. A device has at most one copy of each stage, and one each of the embedding and
// the head, so that each sum has its own place.
struct StagesRequest {
  const core::LlamaConfig& config;
  const plan::PipelineFile& file;
  int device = 0;
  int64_t batch_rows = 0;  // of a micro-batch
  int64_t sequence = 0;
  StageTensors& tensors;  // outlive the stages
  // Called in the step's last backward, where one stage is the whole model; null: not wanted.
  LlamaStage::OnFinal on_final = nullptr;
};

// INVALID_ARGUMENT: an unsupported request. RESOURCE_EXHAUSTED: device memory.
using MakeStages = std::function<absl::StatusOr<std::unique_ptr<ModelStages>>(const StagesRequest& request)>;

}  // namespace causeway::worker
