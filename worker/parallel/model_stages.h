// The stages of a model that a rank computes, on any processor.
//
//   BeginStep(micro-batches) ─► the operations of the program ─► EndStep: the loss
//
// Implementations: LlamaStages, on the processor; GpuStages. One owner thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/run_config.h"
#include "plan/pipeline_file.h"
#include "worker/data/evaluation.h"
#include "worker/model/gpu_layers.h"
#include "worker/model/llama_stage.h"
#include "worker/parallel/stage_runner.h"

namespace causeway::worker {

class ModelStages : public StageRunner {
 public:
  virtual int64_t message_values() const = 0;

  virtual bool sorts_rows() const { return false; }  // whether BeginStep needs rows sorted by token

  // `parts`: all micro-batches, of which copy c has the c-th share; `scale`: the factor of each one's mean loss.
  virtual absl::Status BeginStep(std::vector<PreparedBatch> parts, float scale) = 0;
  // Errors of the device, if it has one.
  virtual absl::Status EndStep() = 0;
  virtual double loss() const = 0;  // this device's part of the mean loss, after EndStep

  // An evaluator on the device that computes the whole model; null: there is none.
  virtual std::unique_ptr<Evaluator> NewEvaluator(const HeldOut& /*held_out*/) const { return nullptr; }
};

// The parts from which stages are made. A device has at most one copy of each stage, and one each of the embedding and
// the head, so that each sum has its own place.
struct StagesRequest {
  const core::LlamaConfig& config;
  const plan::PipelineFile& file;
  int device = 0;
  int64_t batch_rows = 0;  // rows of a micro-batch
  int64_t sequence = 0;
  // Called in the step's last backward, where one stage is the whole model; null: not wanted.
  LlamaStage::OnFinal on_final = nullptr;
  bool timed = false;  // the times of operations are wanted
};

}  // namespace causeway::worker
