// The end of a Llama on a device: the last norm, the head and the classifier, queued on kCompute.
//
//   Forward: x ─► norm
//   BackwardInput, by chunks of rows: ─► head ─► logits ─► classifier: losses, and the logits become their gradients ─►
//                                     gradients of the norm's output and of the head's weight; then of x and the norm
//   BackwardWeight: for a pipeline's stage, whose W comes later
//
// Logits are the largest array of many models, and so only a chunk of them is in memory, except where W comes later and
// needs the gradients of all. A weight's gradient adds up over chunks in their order.
//
// Reference: worker/model/llama_stage.h. One owner thread.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/check.h"
#include "offload/device.h"
#include "offload/host_array.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/model/gpu_layers.h"

namespace causeway::worker {

// The losses of the rows of some batches, on their way to the host. One owner thread.
class LossRows {
 public:
  explicit LossRows(offload::Device* device) : device_(device), pool_(device), here_(device->MakeEvent()) {}

  // The same number of rows each time.
  void Copy(const float* losses, int64_t rows) {
    const size_t bytes = static_cast<size_t>(rows) * sizeof(float);
    if (batches_ == rows_.size()) {
      absl::StatusOr<offload::PinnedPool::Array> pinned = pool_.Take(bytes);
      if (!pinned.ok()) return not_pinned_.push_back(pinned.status());
      rows_.push_back(*std::move(pinned));
    }
    device_->CopyToHost(offload::Queue::kCompute, rows_[batches_++].data(), losses, bytes);
    device_->Record(here_, offload::Queue::kCompute);
  }

  // The mean over all rows since the last call, without the last `skipped`; waits for them.
  absl::StatusOr<double> Mean(int64_t skipped) {
    device_->AwaitOnHost(here_);
    if (!not_pinned_.empty()) return not_pinned_.front();
    RETURN_IF_ERROR(device_->status());
    double sum = 0, count = 0;
    for (size_t i = 0; i < batches_; ++i) {
      std::span<const float> rows = rows_[i].Values<float>();
      if (i + 1 == batches_) rows = rows.first(rows.size() - static_cast<size_t>(skipped));
      sum = std::accumulate(rows.begin(), rows.end(), sum);
      count += static_cast<double>(rows.size());
    }
    batches_ = 0;
    return sum / count;
  }

 private:
  offload::Device* const device_;
  offload::PinnedPool pool_;
  std::vector<offload::PinnedPool::Array> rows_;  // the losses of each batch
  size_t batches_ = 0;
  std::vector<absl::Status> not_pinned_;
  offload::Device::Event here_;
};

template <typename T>
class GpuHead {
 public:
  struct Settings {
    int64_t rows = 0, hidden = 0, vocab = 0;
    int64_t norm = 0, weight = 0;  // where they begin in the flat arrays
    bool apart = false;            // W comes later than I
    int64_t logits_bytes = 0;      // most in memory, but at least one row; ignored if apart
  };
  // The arrays to which gradients are added.
  struct Gradients {
    float *norm = nullptr, *weight = nullptr;
  };

  // `dnormed`: scratch of [rows, hidden], kept until BackwardWeight. The other memory is the arena's, too, from here
  // on.
  GpuHead(const Settings& settings, Arena::Place dnormed, const GpuLayers<T>* layers, Arena* arena,
          ComputeBackend* backend);

  void Forward(const T* parameters, const T* x);
  // After Forward: the losses alone.
  void Evaluate(const T* parameters, const int32_t* targets);
  // dx becomes the gradient of `scale` times the mean loss. Also does W if there are gradients.
  void BackwardInput(const T* parameters, const T* x, const int32_t* targets, float scale, const Gradients& gradients,
                     T* dx);
  void BackwardWeight(const T* x, const Gradients& gradients);

  // The mean of all rows since the last call, in nats, without the last `skipped`.
  absl::StatusOr<double> Loss(int64_t skipped) { return loss_rows_.Mean(skipped); }

 private:
  // Rows of logits that begin on whole lines, for any vocabulary.
  int64_t stride() const;
  T* At(Arena::Place place) const { return arena_->At<T>(place); }
  float* Floats(Arena::Place place) const { return arena_->At<float>(place); }
  int64_t ChunkRows() const;
  typename GpuLayers<T>::Map HeadOf(int64_t rows) const { return {settings_.hidden, settings_.vocab, stride(), rows}; }
  typename GpuLayers<T>::PassedNorm Norm(const T* parameters, const T* x) const;
  // Head and classifier of rows from `first` on: their losses, and in the logits' place their gradients.
  void Classify(const T* parameters, const int32_t* targets, int64_t first, int64_t rows, float factor);

  const Settings settings_;
  const GpuLayers<T>* const layers_;
  Arena* const arena_;
  ComputeBackend* const backend_;
  const Arena::Place dnormed_;
  const int64_t chunk_rows_;
  Arena::Place normed_ = 0, scale_ = 0, logits_ = 0, losses_ = 0;
  LossRows loss_rows_;
};

}  // namespace causeway::worker
