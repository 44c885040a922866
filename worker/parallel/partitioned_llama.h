// Computes a Llama's loss and gradients layer by layer; each layer is gathered for as long as it is needed.
//
//   group 0: the embedding and layer 0 ─► layer 1 ─► … ─► the last layer and the head        one stage each
//
// One owner thread; every rank makes the same calls.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/llama_config.h"
#include "worker/model/llama_stage.h"
#include "worker/parallel/partitioned_values.h"
#include "worker/parallel/work_trace.h"

namespace causeway::worker {

// The tensors of each group.
std::vector<std::vector<int>> GroupsOf(const core::LlamaConfig& config);

class PartitionedLlama {
 public:
  struct Sizes {
    int64_t rows = 0, sequence = 0;  // of a step
    int64_t micro_batches = 1;
  };

  // All outlive the object.
  PartitionedLlama(const core::LlamaConfig& config, const Sizes& sizes, const PartitionLayout& layout,
                   PartitionedValues& values);

  // Adds the gradients of `scale` times the batch's mean loss, which it returns.
  absl::StatusOr<double> Run(const Batch& batch, float scale);

  // Notes each layer's forward and backward. It outlives the object.
  void Trace(WorkTrace* trace) { trace_ = trace; }

  int64_t gathered_bytes() const {
    return static_cast<int64_t>((weights_.size() + sums_.size() + tied_head_.size()) * sizeof(float));
  }

 private:
  absl::StatusOr<double> RunPart(const Batch& batch, float scale, bool last_part);
  absl::Status Gather(size_t group);
  void ShowGradients(size_t group);
  void Note(const char* what, size_t group, double passes, core::Clock::TimePoint begin);
  std::span<float> Room(std::vector<float>& rooms, size_t group);

  const PartitionLayout& layout_;
  PartitionedValues& values_;
  const int64_t micro_batches_;
  const size_t tensors_;
  std::vector<LlamaStage> stages_;     // of each group
  int64_t room_values_ = 0;            // of the largest group
  std::vector<float> weights_, sums_;  // of one group at a time; beside a tied head, weights of group 0
  std::vector<float> tied_head_;       // the head's gradient, summed over a step, where it is the embedding
  Tensors weight_views_;
  MutableTensors sum_views_;
  std::vector<BlockActivations> blocks_;
  std::vector<StageActivations> kept_;
  LayerGradients scratch_;
  std::vector<float> below_, stream_, next_;
  WorkTrace* trace_ = nullptr;
};

}  // namespace causeway::worker
