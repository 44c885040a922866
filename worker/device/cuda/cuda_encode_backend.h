// The CUDA device on which contributions of another program's θ are encoded: the program's compute device.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "offload/cuda/cuda_device.h"
#include "worker/device/encode_backend.h"

namespace causeway::worker {

// EncodeBackend::Encode on a CUDA device; failures are the device's.
void EncodeOn(offload::CudaDevice& device, offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
              unsigned long long* bad_block);

class CudaEncodeBackend final : public EncodeBackend {
 public:
  // Opens GPU `index`; errors as in offload::MakeCudaDevice.
  static absl::StatusOr<std::unique_ptr<CudaEncodeBackend>> Make(int index);

  offload::Device& device() override { return *device_; }
  bool Encodes(core::CodecId codec) const override;
  void Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
              unsigned long long* bad_block) override;

  static absl::Status Await(void* event);  // a cudaEvent_t
  absl::Status OrderAfter(void* event);    // orders later work on kSync after the event

  // Queues a copy on the device and then the event, on a stream of the program's (a cudaStream_t; null: the default
  // one).
  absl::Status CopyOn(void* stream, float* to, const float* from, int64_t count, offload::Device::Event event);

 private:
  explicit CudaEncodeBackend(std::unique_ptr<offload::CudaDevice> device) : device_(std::move(device)) {}

  const std::unique_ptr<offload::CudaDevice> device_;
};

}  // namespace causeway::worker
