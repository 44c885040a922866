// A Llama on a device: forward and backward, queued on kCompute.
//
//   tokens ─► embedding ─► block 0 ─► … ─► block L−1 ─► norm ─► head ─► classifier ─► losses of the rows
//      in a block: q,k,v are one product, gate,up another, since their weights lie back to back in the manifest
//
// One text for every ComputeBackend; worker/train/llama_model.h is its reference. Parameters and gradients are flat, in
// manifest order, in device memory; gradients are added to. The values that a pass keeps lie in an arena that is made
// before the run. Sums of weight gradients over rows have a fixed order. One owner thread; nothing blocks but Losses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/llama_config.h"
#include "core/manifest.h"
#include "worker/gpu/arena.h"
#include "worker/gpu/compute_backend.h"
#include "worker/gpu/gpu_attention.h"
#include "worker/train/llama_block.h"
#include "worker/train/llama_model.h"

namespace causeway::worker {

class GpuLlama {
 public:
  // For batches of `batch_rows` rows of `sequence` tokens. INVALID_ARGUMENT: a shape that kernels do not take.
  // RESOURCE_EXHAUSTED: device memory. The backend outlives it.
  static absl::StatusOr<std::unique_ptr<GpuLlama>> Make(const core::LlamaConfig& config, int64_t batch_rows,
                                                        int64_t sequence, ComputeBackend* backend);

  // Brings a batch to the device: copies of it are used from then on.
  void Begin(const Batch& batch);
  // Forward with these parameters.
  void Forward(const float* parameters);
  // Adds the gradient of `scale` times the batch's mean loss. After Forward, with the same parameters; once.
  void Backward(const float* parameters, float* gradients, float scale);
  // Waits for the last Backward. The mean loss of its batch, in nats per token.
  absl::StatusOr<double> Loss();

  const Arena& arena() const { return arena_; }

 private:
  struct Block {
    Arena::Place input, normed_input, input_scale, qkv, attended, middle, normed_middle, middle_scale, gate_up,
        activated;
  };

  GpuLlama(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, ComputeBackend* backend);
  void Plan();
  void FillRopeTables();

  float* At(Arena::Place place) const { return arena_.At<float>(place); }
  const float* Weight(const float* parameters, int tensor) const { return parameters + firsts_[tensor]; }
  int TensorOf(int64_t layer, BlockTensor tensor) const { return 1 + static_cast<int>(layer) * kBlockTensors + tensor; }
  int final_norm() const { return TensorOf(config_.num_hidden_layers, kQ); }
  int head() const { return config_.tie_word_embeddings ? 0 : final_norm() + 1; }
  int64_t qkv_size() const { return shape_.hidden + 2 * shape_.kv_hidden; }

  void Launch(const Kernel& kernel) { backend_->Launch(offload::Queue::kCompute, kernel); }
  // y = x · wᵀ (+ y), dx = dy · w, dw += dyᵀ · x; x is [rows, in], w [out, in].
  void Linear(int64_t in, int64_t out, const float* x, const float* w, float* y, float beta);
  void LinearBackwardInput(int64_t in, int64_t out, const float* dy, const float* w, float* dx);
  void LinearBackwardWeight(int64_t in, int64_t out, const float* dy, const float* x, float* dw);
  void Norm(const float* x, const float* w, float* y, float* scale);
  // Adds to `dx` and to the weight's gradient.
  void NormBackward(const float* dy, const float* x, const float* w, const float* scale, float* dx, float* dw);
  void Rotate(float* qkv, float sign);
  void BlockForward(int64_t layer, const float* parameters, float* output);
  // `dstream` holds the gradient of the block's output, and then of its input.
  void BlockBackward(int64_t layer, const float* parameters, float* gradients, float* dstream);

  const core::LlamaConfig config_;
  const LlamaShape shape_;
  ComputeBackend* const backend_;
  std::vector<int64_t> firsts_;  // of each tensor in the flat arrays
  Arena arena_;
  GpuAttention attention_;
  std::vector<Block> blocks_;
  Arena::Place output_ = 0, normed_output_ = 0, output_scale_ = 0, logits_ = 0, losses_ = 0;
  Arena::Place tokens_ = 0, targets_ = 0, order_ = 0, begins_ = 0, occurring_ = 0;
  Arena::Place cosines_ = 0, sines_ = 0;
  Arena::Place dstream_ = 0, dnormed_ = 0, dqkv_ = 0, dattended_ = 0, dgate_up_ = 0, dactivated_ = 0, partials_ = 0,
               scores_ = 0, dscores_ = 0;
  std::vector<int32_t> staged_[5];  // tokens, targets, order, begins, occurring, until they are on the device
  std::vector<float> tables_[2];
  std::vector<float> loss_rows_;
  offload::Device::Event copied_, losses_here_;
};

}  // namespace causeway::worker
