// Weights and gradients of a pipeline's stages on a device, and messages in transit.
//
//   BringWeights ─► device … gradients, added to there ─► ReadGradients          Upload, Download: a message
//
// Flat arrays, in the order of LlamaStage's gradients: a weight has the same offset as its gradient. Every copy is
// waited for, except those of BringWeights and Upload. One owner thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/model/tensor_values.h"

namespace causeway::worker {

class StageValues {
 public:
  // On the host; they outlive the object, as the backend does.
  StageValues(const Tensors& weights, const MutableTensors& gradients, ValueType type, ComputeBackend* backend);
  absl::Status Allocate() { return arena_.Allocate(backend_->device()); }  // RESOURCE_EXHAUSTED

  const std::vector<int64_t>& firsts() const { return firsts_; }  // of each gradient in the arrays
  const void* weights() const { return arena_.At<char>(computed_); }
  float* gradients() const { return arena_.At<float>(sums_); }

  void BringWeights();  // as they are now; gradients become zero
  absl::Status ReadGradients(const std::vector<int>& which);

  // Values of a message that the type can represent keep their bits in both directions. Do nothing for an empty
  // message.
  void Upload(std::span<const float> message, void* to);
  void Download(const void* from, std::span<float> message);  // waits for all queued work, even if it is empty
  void Await();
  absl::Status status() const { return backend_->device().status(); }

 private:
  const Tensors& weights_;
  const MutableTensors& gradients_;
  const ValueType type_;
  ComputeBackend* const backend_;
  std::vector<int64_t> firsts_;
  Arena arena_;
  Arena::Place parameters_ = 0, computed_ = 0, sums_ = 0;
  offload::Device::Event done_;
  std::vector<uint16_t> staged_;  // bfloat16 values in transit
};

}  // namespace causeway::worker
