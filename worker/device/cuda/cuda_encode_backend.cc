#include "worker/device/cuda/cuda_encode_backend.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "codecs/cuda/cuda_codec.h"
#include "core/check.h"
#include "offload/cuda/current_device.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<CudaEncodeBackend>> CudaEncodeBackend::Make(int index) {
  ASSIGN_OR_RETURN(std::unique_ptr<offload::CudaDevice> device, offload::MakeCudaDevice(index));
  return std::unique_ptr<CudaEncodeBackend>(new CudaEncodeBackend(std::move(device)));
}

bool CudaEncodeBackend::Encodes(core::CodecId codec) const { return codecs::cuda::Supports(codec); }

void EncodeOn(offload::CudaDevice& device, offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
              unsigned long long* bad_block) {
  if (!device.status().ok()) return;
  const offload::CurrentDevice here(device.index());
  const auto stream = static_cast<cudaStream_t>(device.StreamOf(queue));
  const absl::Status launched = codecs::cuda::Encode(codec, job, bad_block, stream);
  if (!launched.ok()) device.Fail(launched);
}

void CudaEncodeBackend::Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
                               unsigned long long* bad_block) {
  EncodeOn(*device_, queue, codec, job, bad_block);
}

absl::Status CudaEncodeBackend::Await(void* event) {
  const cudaError_t error = cudaEventSynchronize(static_cast<cudaEvent_t>(event));
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: waiting for an event: ", cudaGetErrorString(error)));
}

absl::Status CudaEncodeBackend::OrderAfter(void* event) {
  const offload::CurrentDevice here(device_->index());
  const auto stream = static_cast<cudaStream_t>(device_->StreamOf(offload::Queue::kSync));
  const cudaError_t error = cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event), 0);
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: queueing a wait for an event: ", cudaGetErrorString(error)));
}

absl::Status CudaEncodeBackend::CopyOn(void* stream, float* to, const float* from, int64_t count,
                                       offload::Device::Event event) {
  device_->CopyOn(stream, to, from, static_cast<size_t>(count) * sizeof(float), event);
  return device_->status();
}

}  // namespace causeway::worker
