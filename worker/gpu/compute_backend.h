// The calls of a trainer to a device beside memory, copies and events (offload/device.h): matrix products, attention,
// and kernels, queued like these.
//
//   GpuLlama ──Gemm, Attention, Launch──► queue kCompute ──► results in device memory
//
// Nothing blocks. Errors show in device().status() from then on. Implementations: worker/gpu/fake_backend.h, on the
// host, in any order that events allow. One owner thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "offload/device.h"
#include "worker/gpu/kernels/llama_kernels.h"
#include "worker/gpu/kernels/value_kernels.h"
#include "worker/train/attention.h"

namespace causeway::worker {

enum class ValueType { kFloat32, kBfloat16 };
constexpr int64_t BytesOf(ValueType type) { return type == ValueType::kFloat32 ? 4 : 2; }

// A row-major matrix in device memory, as it lies there; `stride` is in values.
struct DeviceMatrix {
  void* data = nullptr;
  int64_t stride = 0;
  ValueType type = ValueType::kFloat32;
  bool transposed = false;
};

// C ← A · B + β C, with A of m × k after it is transposed where it says so, B of k × n likewise. Sums are float32.
struct GemmJob {
  int64_t m = 0, n = 0, k = 0;
  DeviceMatrix a, b;
  DeviceMatrix c;
  float beta = 0;
};

// Causal attention over packed rows |q|k|v| of `stride` values; out is [rows, heads · size].
struct AttentionJob {
  AttentionShape shape;
  ValueType type = ValueType::kFloat32;
  void* qkv = nullptr;
  void* out = nullptr;
  void* saved = nullptr;  // of the forward pass for the backward pass: AttentionSavedBytes
  // Of the backward pass alone.
  void* dout = nullptr;
  void* dqkv = nullptr;
  void* scratch = nullptr;  // AttentionScratchBytes
};

using Kernel = std::variant<EmbeddingKernel<float>, EmbeddingBackwardKernel<float>, RmsNormKernel<float>,
                            RmsNormBackwardKernel<float>, RmsNormWeightKernel<float>, RopeKernel<float>,
                            SwiGluKernel<float>, SwiGluBackwardKernel<float>, ClassifierKernel<float>,
                            AddPartialsKernel, FillKernel, CopyKernel, SumOfSquaresKernel, MixKernel, RebaseKernel>;

class ComputeBackend {
 public:
  virtual ~ComputeBackend() = default;

  virtual offload::Device& device() = 0;

  virtual void Gemm(offload::Queue queue, const GemmJob& job) = 0;

  virtual int64_t AttentionSavedBytes(const AttentionShape& shape) const = 0;
  virtual int64_t AttentionScratchBytes(const AttentionShape& shape) const = 0;
  virtual void Attention(offload::Queue queue, const AttentionJob& job) = 0;
  virtual void AttentionBackward(offload::Queue queue, const AttentionJob& job) = 0;

  virtual void Launch(offload::Queue queue, const Kernel& kernel) = 0;
};

}  // namespace causeway::worker
