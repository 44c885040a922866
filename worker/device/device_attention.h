// Causal attention with grouped key and value heads on a device, queued on kCompute.
//
//   qkv [rows, |q|k|v|] ──Forward──► out [rows, heads · size], statistics        dout ──Backward──► dqkv
//                                    └── both reach Backward unchanged ───────────────┘
//
// q, k and v are side by side in packed rows, as are their gradients; all have the model's compute type.
// Implementations: worker/device/product_attention.h, for every backend, and the reference of faster ones;
// worker/device/cuda/cudnn_attention.h. Their sums have a fixed order. One owner thread. Sources: arXiv 1706.03762
// section 3.2, 2305.13245.
#pragma once

#include <cstdint>

#include "worker/device/attention.h"

namespace causeway::worker {

// The implementation for a GPU; auto: cuDNN's, if available and if it supports the shape.
enum class AttentionKind { kAuto, kCudnn, kOwn };
inline constexpr AttentionKind kAllAttentionKinds[] = {AttentionKind::kAuto, AttentionKind::kCudnn,
                                                       AttentionKind::kOwn};
inline const char* AttentionKindName(AttentionKind kind) {
  constexpr const char* kNames[] = {"auto", "cudnn", "own"};
  return kNames[static_cast<int>(kind)];
}

class DeviceAttention {
 public:
  virtual ~DeviceAttention() = default;

  virtual AttentionKind kind() const = 0;

  // The number of float32 values of a layer that Forward leaves for Backward.
  virtual int64_t statistics() const = 0;

  // The size of the scratch memory that all layers share.
  virtual int64_t buffer_bytes() const = 0;
  virtual void SetBuffer(void* memory) = 0;  // on the device; before the first call below

  virtual void Forward(const void* qkv, void* out, float* statistics) = 0;
  virtual void Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) = 0;
};

}  // namespace causeway::worker
