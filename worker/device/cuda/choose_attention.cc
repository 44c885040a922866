#include "worker/device/cuda/choose_attention.h"

#include <spdlog/spdlog.h>

#include "worker/device/cuda/cudnn_attention.h"
#include "worker/device/product_attention.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<DeviceAttention>> ChooseAttention(const GpuAttentionChoice& choice,
                                                                 offload::CudaDevice* device, ComputeBackend* backend) {
  const auto own = [&] { return MakeProductAttention(choice.shape, choice.type, backend); };
  if (choice.kind == AttentionKind::kOwn || choice.type == ValueType::kFloat32) return own();
  auto fused = MakeCudnnAttention(choice.shape, choice.library_directory, device);
  if (fused.ok() || choice.kind == AttentionKind::kCudnn) return fused;
  auto products = own();
  spdlog::warn("attention by matrix products, which is slower and takes {:.1f} MB for its scores: {}",
               static_cast<double>(products->buffer_bytes()) / 1e6, std::string(fused.status().message()));
  return products;
}

}  // namespace causeway::worker
