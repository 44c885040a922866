// One block of a Llama on a device: forward, and backward in two parts, queued on kCompute.
//
//   Forward(output) ─► BackwardInput: the gradient of the output becomes the one of the input ─► BackwardWeight
//                                        └── Between, of a pipeline's stage: W may come later ──────────┘
//
// The values that a pass keeps are in the model's arena. Gradients of weights are added to. Reference:
// worker/model/llama_block.h. One owner thread.
#pragma once

#include <array>
#include <cstdint>

#include "core/run_config.h"
#include "worker/device/arena.h"
#include "worker/device/attention.h"
#include "worker/device/compute_backend.h"
#include "worker/model/gpu_layers.h"
#include "worker/model/llama_block.h"
#include "worker/model/llama_layers.h"

namespace causeway::worker {

// RoPE on a device: tables of the angles of each position, and the rotation of packed rows |q|k|v|.
//
// The reference is worker/model/llama_layers.h. One owner thread.
template <typename T>
class GpuRope {
 public:
  // The tables' memory is the arena's.
  GpuRope(const core::LlamaConfig& config, const AttentionShape& shape, Arena* arena, ComputeBackend* backend);

  void Fill();  // once the arena has its memory

  // Turns q and k in place by their rows' angles, or back with sign −1.
  void Rotate(T* qkv, float sign) const;

 private:
  const AttentionShape shape_;
  Arena* const arena_;
  ComputeBackend* const backend_;
  const Rope tables_;  // outlives the queued copy
  Arena::Place cosines_, sines_;
};

// The objects that all blocks of a model share.
template <typename T>
struct GpuBlocks {
  LlamaShape shape;
  Recompute recompute = Recompute::kNone;
  bool apart = false;  // W (BackwardWeight) comes later than I (BackwardInput)
  GpuLayers<T>* layers = nullptr;
  GpuRope<T>* rope = nullptr;
  DeviceAttention* attention = nullptr;
  Arena* arena = nullptr;
  ComputeBackend* backend = nullptr;
  // Scratch.
  Arena::Place dnormed = 0, dqkv = 0, dattended = 0, dgate_up = 0, dactivated = 0, remade = 0;

  int64_t qkv_size() const { return shape.hidden + 2 * shape.kv_hidden; }
};

template <typename T>
class GpuBlock {
 public:
  using Firsts = std::array<int64_t, kBlockTensors>;  // where its tensors begin in the flat arrays

  // Asks the arena for memory, which it shares with `first`, the model's first block, where values are made again.
  GpuBlock(const GpuBlocks<T>* blocks, const Firsts& firsts, const GpuBlock* first);

  Arena::Place input() const { return kept_.input; }

  void Forward(const T* parameters, T* output);
  // `dstream` holds the gradient of the block's output, and then of its input. Also does W if `gradients` is not null.
  void BackwardInput(const T* parameters, float* gradients, T* dstream);
  void BackwardWeight(const T* parameters, float* gradients);

 private:
  struct Kept {
    Arena::Place input = 0, normed_input = 0, input_scale = 0, qkv = 0, attended = 0, statistics = 0, middle = 0,
                 normed_middle = 0, middle_scale = 0, gate_up = 0, activated = 0;
  };
  struct Between {
    Arena::Place doutput = 0, dgate_up = 0, dnormed_middle = 0, dmiddle = 0, dqkv = 0, dnormed_input = 0;
  };

  T* At(Arena::Place place) const { return blocks_->arena->template At<T>(place); }
  float* Floats(Arena::Place place) const { return blocks_->arena->template At<float>(place); }
  void Launch(const Kernel& kernel) { blocks_->backend->Launch(offload::Queue::kCompute, kernel); }
  void Copy(const T* from, T* to) { Launch(CopyKernel<T, T>{from, to, blocks_->shape.rows() * blocks_->shape.hidden}); }
  void SwiGlu();
  void Remake(const T* parameters);  // recomputes the values that the forward pass did not keep
  using PassedNorm = typename GpuLayers<T>::PassedNorm;
  PassedNorm MiddleNorm(const T* parameters) const {
    return {.dy = At(between_.dnormed_middle),
            .x = At(kept_.middle),
            .w = parameters == nullptr ? nullptr : parameters + firsts_[kMiddleNorm],
            .scale = Floats(kept_.middle_scale)};
  }
  PassedNorm InputNorm(const T* parameters) const {
    return {.dy = At(between_.dnormed_input),
            .x = At(kept_.input),
            .w = parameters == nullptr ? nullptr : parameters + firsts_[kInputNorm],
            .scale = Floats(kept_.input_scale)};
  }
  // The gradients of all weights but the norms'.
  void FeedForwardWeight(float* gradients, const T* doutput);
  void AttentionWeight(float* gradients, const T* dmiddle);

  const GpuBlocks<T>* const blocks_;
  const Firsts firsts_;
  Kept kept_;
  Between between_;
};

}  // namespace causeway::worker
