// The end of a Llama on a device: the last norm, the head and the classifier, queued on kCompute.
//
//   x ─► norm ─► head ─► logits ─► classifier: losses, and the logits become their gradients in place
//                                     ─► BackwardInput: the gradient of x ─► BackwardWeight, of a pipeline's stage
//                                     later
//
// Reference: worker/train/llama_stage.h. One owner thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/gpu/arena.h"
#include "worker/gpu/compute_backend.h"
#include "worker/gpu/gpu_layers.h"
#include "worker/gpu/loss_rows.h"

namespace causeway::worker {

template <typename T>
class GpuHead {
 public:
  struct Settings {
    int64_t rows = 0, hidden = 0, vocab = 0;
    int64_t norm = 0, weight = 0, weight_gradient = 0;  // in the flat arrays
  };

  // `dnormed`: scratch of [rows, hidden], kept until BackwardWeight. The other memory is the arena's, too, from here
  // on.
  GpuHead(const Settings& settings, Arena::Place dnormed, const GpuLayers<T>* layers, Arena* arena,
          ComputeBackend* backend);

  void Forward(const T* parameters, const T* x);
  // dx becomes the gradient of `scale` times the mean loss. Also does W if `gradients` is not null.
  void BackwardInput(const T* parameters, const T* x, const int32_t* targets, float scale, float* gradients, T* dx);
  void BackwardWeight(const T* x, float* gradients);

  // The mean of all rows since the last call, in nats.
  absl::StatusOr<double> Loss() { return loss_rows_.Mean(); }

 private:
  // Rows of logits that begin on whole lines, for any vocabulary.
  int64_t stride() const;
  T* At(Arena::Place place) const { return arena_->At<T>(place); }
  float* Floats(Arena::Place place) const { return arena_->At<float>(place); }
  typename GpuLayers<T>::PassedNorm Norm(const T* parameters, const T* x) const;
  void HeadWeight(float* gradients);  // without the norm's

  const Settings settings_;
  const GpuLayers<T>* const layers_;
  Arena* const arena_;
  ComputeBackend* const backend_;
  const Arena::Place dnormed_;
  Arena::Place normed_ = 0, scale_ = 0, logits_ = 0, losses_ = 0;
  LossRows loss_rows_;
};

}  // namespace causeway::worker
