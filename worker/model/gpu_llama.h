// A Llama on a device: forward and backward, queued on kCompute.
//
//   tokens ─► embedding ─► block 0 ─► … ─► block L−1 ─► norm ─► head ─► classifier ─► losses of the rows
//      in a block: q,k,v are one product, gate,up another, since their weights lie back to back in the manifest
//
// Or one stage of it, on a device of a pipeline: some blocks, optionally with the embedding or the head
// (llama_stage.h). The same source text serves every ComputeBackend and type; worker/model/llama_model.h is its
// reference. Parameters are flat, in manifest order, in device memory, of the compute type; gradients likewise, in
// float32, and are added to. The values that a pass keeps lie in an arena that is made before the run. Sums of weight
// gradients over rows have a fixed order. One owner thread; nothing blocks except Begin, until the last but one
// is on the device, and Loss.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/model/gpu_layers.h"
#include "worker/model/llama_model.h"

namespace causeway::worker {

class GpuLlama {
 public:
  struct Options {
    int64_t batch_rows = 0;  // rows of `sequence` tokens
    int64_t sequence = 0;
    ValueType type = ValueType::kFloat32;
    Recompute recompute = Recompute::kNone;
    int64_t logits_bytes = int64_t{1} << 30;               // most in memory at once, except in a stage
    int64_t room_bytes = 0;                                // the size of each of rooms(); a multiple of 256
    std::shared_ptr<DeviceAttention> attention = nullptr;  // for these rows and this type; null: the backend's

    // A stage of a pipeline, for one micro-batch at a time.
    struct Stage {
      StageRange range;
      std::vector<int64_t> firsts;  // places of the tensors and the tied head's gradient in the flat arrays
    };
    std::optional<Stage> stage = std::nullopt;  // none: the whole model
  };

  // Memory that is unused from some point of the last backward until the next forward, for the update in between.
  struct Room {
    void* memory = nullptr;
    int64_t dead_from = 0;  // when the gradients from this value on are final
  };
  // In the order in which they die. Values of layers lie so that the last layers' die first.
  using Rooms = std::array<Room, 2>;

  // Called from the end to the front: the gradients of this tensor and of all after it are final when all work queued
  // on kCompute is done.
  using OnFinal = LlamaStage::OnFinal;

  // The device memory that Make takes.
  static absl::StatusOr<int64_t> Bytes(const core::LlamaConfig& config, const Options& options,
                                       ComputeBackend* backend);
  // RESOURCE_EXHAUSTED: device memory. The backend outlives it.
  static absl::StatusOr<std::unique_ptr<GpuLlama>> Make(const core::LlamaConfig& config, const Options& options,
                                                        ComputeBackend* backend);
  virtual ~GpuLlama() = default;

  // Brings a batch to the device. RESOURCE_EXHAUSTED: pinned memory of the host.
  virtual absl::Status Begin(const PreparedBatch& batch) = 0;
  // Forward with these parameters.
  virtual void Forward(const void* parameters) = 0;
  // Adds the gradient of `scale` times the batch's mean loss. After Forward, with the same parameters; once. `queued`
  // is called for each part of backward when it is queued, finally with 0. Where the embedding is the head, the head's
  // part lies after the gradients of all tensors: the caller adds it to the embedding's once a step, as AddTiedHead.
  virtual void Backward(const void* parameters, float* gradients, float scale, const OnFinal& queued = nullptr) = 0;
  // Backward of a stage in two parts, I and W, with the bits of the whole. Between them nothing else may be computed
  // with this object.
  virtual void BackwardInput(const void* parameters, float scale) = 0;
  virtual void BackwardWeight(const void* parameters, float* gradients) = 0;
  // A stage's messages, [rows, hidden] values of the type: the input of Forward where the embedding is elsewhere, its
  // output where the head is elsewhere, and the gradient of the output, which becomes that of the input.
  virtual void* input() const = 0;
  virtual void* output() const = 0;
  virtual void* stream() const = 0;

  // After Forward of a whole model, instead of Backward: the losses alone.
  virtual void Evaluate(const void* parameters) = 0;

  // Waits for the last Backward: `final` is called for each part when it is done. Returns the device's error, if there
  // is one; then `final` may not have been called for all.
  virtual absl::Status AwaitGradients(const OnFinal& final) = 0;
  // Waits for the last Backward or Evaluate. The mean loss of all batches since the last call, without the last
  // `skipped` tokens, in nats per token.
  virtual absl::StatusOr<double> Loss(int64_t skipped = 0) = 0;

  virtual Rooms rooms() const = 0;
  virtual const Arena& arena() const = 0;
};

}  // namespace causeway::worker
