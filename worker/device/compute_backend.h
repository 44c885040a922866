// A trainer's calls to a device, in addition to memory, copies and events (offload/device.h): matrix products,
// attention, and kernels, queued in the same way.
//
//   GpuLlama ──Gemm, Launch──► queue kCompute ──► results in device memory
//
// Nothing blocks. Errors show in device().status() from then on. Implementations: worker/device/cuda, and
// tests/worker/device/fake_backend.h on the host, in any order that events allow. A queue is for one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "offload/device.h"
#include "worker/device/device_attention.h"
#include "worker/device/encode_backend.h"
#include "worker/device/kernels/embedding_kernels.h"
#include "worker/device/kernels/llama_kernels.h"
#include "worker/device/kernels/norm_kernels.h"
#include "worker/device/kernels/value_kernels.h"

namespace causeway::worker {

enum class ValueType { kFloat32, kBfloat16 };
constexpr int64_t BytesOf(ValueType type) { return type == ValueType::kFloat32 ? 4 : 2; }

// A row-major matrix in device memory; `stride` is in values.
struct DeviceMatrix {
  void* data = nullptr;
  int64_t stride = 0;
  ValueType type = ValueType::kFloat32;
  bool transposed = false;
};

// C ← α A · B + β addend, where A is m × k, after transposing it if so marked, and B is k × n likewise. Sums are
// float32. With a batch: that many products, each with matrices one step further; their C do not overlap.
struct GemmJob {
  int64_t m = 0, n = 0, k = 0;
  DeviceMatrix a, b, c;
  float alpha = 1;
  float beta = 0;
  const void* addend = nullptr;  // laid out as C, apart from it; null: C itself
  int64_t batch = 1;
  int64_t a_step = 0, b_step = 0, c_step = 0;
};

template <typename T>
inline constexpr ValueType kTypeOf = sizeof(T) == sizeof(float) ? ValueType::kFloat32 : ValueType::kBfloat16;

using F32 = float;
using B16 = Bfloat16;
using Kernel =
    std::variant<EmbeddingKernel<F32>, EmbeddingKernel<B16>, EmbeddingBackwardKernel<F32>, EmbeddingBackwardKernel<B16>,
                 EmbeddingPartialsKernel, RmsNormKernel<F32>, RmsNormKernel<B16>, RmsNormBackwardKernel<F32>,
                 RmsNormBackwardKernel<B16>, RmsNormWeightKernel<F32>, RmsNormWeightKernel<B16>,
                 RmsNormBackwardBothKernel<F32, 1>, RmsNormBackwardBothKernel<F32, 2>,
                 RmsNormBackwardBothKernel<F32, 4>, RmsNormBackwardBothKernel<B16, 1>,
                 RmsNormBackwardBothKernel<B16, 2>, RmsNormBackwardBothKernel<B16, 4>, RopeKernel<F32>, RopeKernel<B16>,
                 SwiGluKernel<F32>, SwiGluKernel<B16>, SwiGluBackwardKernel<F32>, SwiGluBackwardKernel<B16>,
                 CausalSoftmaxKernel<F32>, CausalSoftmaxKernel<B16>, SoftmaxBackwardKernel<F32>,
                 SoftmaxBackwardKernel<B16>, ClassifierKernel<F32>, ClassifierKernel<B16>, FillKernel<F32>,
                 FillKernel<B16>, CopyKernel<F32, F32>, CopyKernel<B16, B16>, CopyKernel<F32, B16>, AddPartialsKernel,
                 SumOfSquaresKernel, SgdKernel, MixKernel, RebaseKernel, GatherKernel, MoveSumKernel>;

class ComputeBackend : public EncodeBackend {
 public:
  virtual void Gemm(offload::Queue queue, const GemmJob& job) = 0;

  // The algorithms of matrix products that a device has chosen by measurement: saved to a checkpoint, and restored from
  // one: the same algorithm gives the same bits. Those of another device or library are ignored.
  virtual std::map<std::string, std::string> product_choices() const { return {}; }
  virtual void SetProductChoices(const std::map<std::string, std::string>&) {}

  virtual void Launch(offload::Queue queue, const Kernel& kernel) = 0;

  // INVALID_ARGUMENT: an unsupported shape. The backend outlives the result.
  virtual absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeAttention(const AttentionShape& shape,
                                                                         ValueType type) = 0;
};

}  // namespace causeway::worker
