// One rank's part of a Llama in a pipeline: the tensors that it holds, and their gradients in a step.
//
//   batch ─► micro-batches ─► RunPipelineStep ─► sums by micro-batch ─► GradientExchange ─► gradients()
//                                  │ G, R: StageShards
//
// Every rank makes and calls the object in step with the others; one owner thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "plan/pipeline_file.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/gradient_exchange.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/pipeline_executor.h"
#include "worker/parallel/pipeline_links.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/pipeline_trace.h"
#include "worker/parallel/stage_shards.h"
#include "worker/ranks/data_parallel.h"

namespace causeway::worker {

class PipelinedLlama {
 public:
  // `file` is one that FitPipeline gave; `rows` are a rank's of a step. INVALID_ARGUMENT: as CompilePipeline;
  // UNAVAILABLE where the trace cannot be written; others as the ranks'.
  static absl::StatusOr<std::unique_ptr<PipelinedLlama>> Open(const core::RunConfig& config,
                                                              const plan::PipelineFile& file, const TrainerRanks& ranks,
                                                              int64_t rows, const std::string& trace_path,
                                                              const MakeStages& make_stages);

  const PipelinePlaces& places() const { return places_; }
  const std::vector<int>& held() const { return places_.held[static_cast<size_t>(ranks_.rank())]; }
  const core::Manifest& held_manifest() const { return held_manifest_; }
  TensorValues& parameters() { return parameters_; }  // of the held tensors
  TensorValues& gradients() { return gradients_; }
  const std::vector<std::span<float>>& tensors() const { return tensors_; }  // of the whole model, empty if not held

  // Computes the gradients of a step's mean loss over all rows of the site. INTERNAL: a rank has failed.
  absl::Status Run(core::Step t, const Batch& batch);
  double loss() const { return stages_->loss(); }  // this device's part of the mean loss over this rank's rows
  double compute_s() const;                        // of the last step
  int64_t sent_bytes() const;
  int slots() const { return programs_.slots; }
  const StageShards* shards() const { return shards_.get(); }  // null: each rank has all of a place

 private:
  PipelinedLlama(const TrainerRanks& ranks, PipelinePlaces places);
  absl::Status Open(const plan::PipelineFile& file, const std::string& trace_path);
  MutableTensors HeldGradients();  // as LlamaStage indexes them
  absl::Status Synchronize(const plan::Operation& operation);
  const PipelineProgram& program() const {
    return programs_.devices[static_cast<size_t>(ranks_.rank() / places_.width)];
  }

  const TrainerRanks ranks_;
  const PipelinePlaces places_;
  const core::Manifest held_manifest_;
  TensorValues parameters_, gradients_;
  std::vector<float> tied_head_;           // the head's gradient where it is the embedding
  std::vector<std::span<float>> tensors_;  // of the whole model
  Tensors weights_;                        // used by the stages, and their gradients
  MutableTensors sums_;
  std::unique_ptr<ModelStages> stages_;
  PipelinePrograms programs_;
  std::unique_ptr<PipelineLinks> links_;
  std::unique_ptr<GradientExchange> exchange_;
  std::unique_ptr<StageShards> shards_;
  std::unique_ptr<PipelineTrace> trace_;  // null: none is written
  std::vector<PipelineSpan> spans_;       // of the last step
};

}  // namespace causeway::worker
