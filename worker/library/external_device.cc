#include "worker/library/external_device.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

#ifdef CAUSEWAY_WITH_CUDA
#include "worker/device/cuda/cuda_encode_backend.h"
#include "worker/device/device_encoder.h"
#endif

namespace causeway::worker {

#ifdef CAUSEWAY_WITH_CUDA
absl::Status EncodeOnCuda(int device, const core::RunConfig& config, const ExternalModel& model, ExternalStore* store) {
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    if (!model.tensors[i].synced || model.tensors[i].dtype == core::DType::kFloat32) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", model.manifest[i].name, ": expected float32, got ",
                                                   core::DTypeName(model.tensors[i].dtype)));
  }
  struct Encoding {
    std::unique_ptr<CudaEncodeBackend> backend;
    std::unique_ptr<DeviceEncoder> encoder;  // after it
  };
  auto encoding = std::make_shared<Encoding>();
  ASSIGN_OR_RETURN(encoding->backend, CudaEncodeBackend::Make(device));
  encoding->encoder = std::make_unique<DeviceEncoder>(
      encoding->backend.get(),
      [store](const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
        return store->KeepTheta(ranges, to, taken);
      },
      DeviceEncoder::Options{.way = {},
                             .memory = config.sync.device_memory,
                             .parameters = core::NumParameters(model.manifest),
                             .residuals = config.codec.feedback_up > 0});
  CudaEncodeBackend* const backend = encoding->backend.get();
  ExternalStore::DeviceCalls calls{
      .copy = [backend](
                  void* stream, float* to, const void* theta, int64_t count,
                  int event) { return backend->CopyOn(stream, to, static_cast<const float*>(theta), count, event); },
      .order_after = [backend](void* event) { return backend->OrderAfter(event); },
      .await = CudaEncodeBackend::Await};
  replica::ThetaEncoder* const encoder = encoding->encoder.get();
  store->EncodeOnDevice(std::shared_ptr<replica::ThetaEncoder>(std::move(encoding), encoder), std::move(calls));
  return absl::OkStatus();
}
#else
absl::Status EncodeOnCuda(int, const core::RunConfig&, const ExternalModel&, ExternalStore*) {
  return absl::UnavailableError("this library was built without CUDA; expected the cuda preset");
}
#endif

}  // namespace causeway::worker
