#include "worker/device/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "codecs/cuda/cuda_codec.h"
#include "core/check.h"
#include "offload/cuda/cuda_device.h"
#include "offload/cuda/current_device.h"
#include "worker/device/cuda/cublas_lt.h"
#include "worker/device/cuda/cuda_encode_backend.h"
#include "worker/device/cuda/cudnn_attention.h"
#include "worker/device/cuda/launch_kernel.h"
#include "worker/device/cuda/matrix_products.h"
#include "worker/device/product_attention.h"

namespace causeway::worker {
namespace {

using offload::Queue;

class CudaBackend final : public ComputeBackend {
 public:
  CudaBackend(std::unique_ptr<offload::CudaDevice> device, std::unique_ptr<MatrixProducts> products,
              CudaLibraries libraries)
      : device_(std::move(device)), products_(std::move(products)), libraries_(std::move(libraries)) {}

  offload::Device& device() override { return *device_; }
  void Gemm(Queue queue, const GemmJob& job) override {
    const offload::CurrentDevice here(device_->index());
    products_->Queue(queue, job);
  }
  std::map<std::string, std::string> product_choices() const override { return products_->Choices(); }
  void SetProductChoices(const std::map<std::string, std::string>& choices) override { products_->SetChoices(choices); }
  void Launch(Queue queue, const Kernel& kernel) override;
  bool Encodes(core::CodecId codec) const override { return codecs::cuda::Supports(codec); }
  void Encode(Queue queue, core::CodecId codec, const codecs::EncodeJob& job, unsigned long long* bad_block) override;
  absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeAttention(const AttentionShape& shape, ValueType type) override;

 private:
  cudaStream_t StreamOf(Queue queue) const { return static_cast<cudaStream_t>(device_->StreamOf(queue)); }

  const std::unique_ptr<offload::CudaDevice> device_;
  const std::unique_ptr<MatrixProducts> products_;
  const CudaLibraries libraries_;
};

void CudaBackend::Encode(Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
                         unsigned long long* bad_block) {
  EncodeOn(*device_, queue, codec, job, bad_block);
}

void CudaBackend::Launch(Queue queue, const Kernel& kernel) {
  if (!device_->status().ok()) return;
  const offload::CurrentDevice here(device_->index());
  if (!LaunchValueKernel(kernel, StreamOf(queue))) LaunchModelKernel(kernel, StreamOf(queue));
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    device_->Fail(absl::InternalError(absl::StrCat("CUDA: launching a kernel: ", cudaGetErrorString(error))));
  }
}

absl::StatusOr<std::unique_ptr<DeviceAttention>> CudaBackend::MakeAttention(const AttentionShape& shape,
                                                                            ValueType type) {
  const offload::CurrentDevice here(device_->index());
  return ChooseAttention(
      {.kind = libraries_.attention, .shape = shape, .type = type, .library_directory = libraries_.directory},
      device_.get(), this);
}

}  // namespace

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

int VisibleGpus() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  cudaGetLastError();
  return 0;
}

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCudaBackend(int index, const CudaLibraries& libraries) {
  ASSIGN_OR_RETURN(std::unique_ptr<offload::CudaDevice> device, offload::MakeCudaDevice(index));
  const offload::CurrentDevice here(index);
  ASSIGN_OR_RETURN(const CublasLt* const blas, LoadCublasLt(libraries.directory));
  ASSIGN_OR_RETURN(std::unique_ptr<MatrixProducts> products,
                   MatrixProducts::Make(device.get(), blas, libraries.times_products));
  return std::make_unique<CudaBackend>(std::move(device), std::move(products), libraries);
}

}  // namespace causeway::worker
