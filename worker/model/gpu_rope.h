// RoPE on a device: tables of the angles of each position, and the rotation of packed rows |q|k|v|.
//
// The reference is worker/model/llama_layers.h. One owner thread.
#pragma once

#include <cstdint>

#include "core/llama_config.h"
#include "worker/device/arena.h"
#include "worker/device/attention.h"
#include "worker/device/compute_backend.h"
#include "worker/model/llama_layers.h"

namespace causeway::worker {

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
  const Rope tables_;  // stays, for it is copied when the queue gets there
  Arena::Place cosines_, sines_;
};

}  // namespace causeway::worker
