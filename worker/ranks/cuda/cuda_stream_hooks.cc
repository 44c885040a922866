#include "worker/ranks/cuda/cuda_stream_hooks.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"
#include "core/stream_priority.h"

namespace causeway::worker {
namespace {

// CUDA keeps the last error until it is read; an error returned here must not show up in another launch.
absl::Status StatusOf(cudaError_t error, absl::string_view attempted) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::InternalError(absl::StrCat("CUDA: ", attempted, ": ", cudaGetErrorString(error)));
}

class CudaStreamHooks final : public StreamHooks {
 public:
  explicit CudaStreamHooks(int device) : device_(device) {}
  ~CudaStreamHooks() override;

  absl::Status Open();

  void* stream() const override { return stream_; }
  absl::Status Use() override { return StatusOf(cudaSetDevice(device_), absl::StrCat("choosing device ", device_)); }
  absl::StatusOr<int64_t> Record() override;
  absl::StatusOr<bool> Done(int64_t event) override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::StatusOr<std::shared_ptr<StreamHooks>> Another() override;

 private:
  const int device_;
  cudaStream_t stream_ = nullptr;
  core::Mutex mutex_;
  std::deque<cudaEvent_t> pending_ ABSL_GUARDED_BY(mutex_);  // recorded, and not done
  std::vector<cudaEvent_t> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> memory_ ABSL_GUARDED_BY(mutex_);
  int64_t come_ ABSL_GUARDED_BY(mutex_) = 0;  // events
};

absl::Status CudaStreamHooks::Open() {
  RETURN_IF_ERROR(Use());
  int least = 0, greatest = 0;
  RETURN_IF_ERROR(StatusOf(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams"));
  const int priority = core::PriorityOf(core::StreamPurpose::kGradients, least, greatest);
  return StatusOf(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "making a stream");
}

CudaStreamHooks::~CudaStreamHooks() {
  if (cudaSetDevice(device_) != cudaSuccess) return;
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  core::MutexLock lock(mutex_);
  for (cudaEvent_t event : pending_) cudaEventDestroy(event);
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
  for (void* memory : memory_) cudaFree(memory);
  cudaGetLastError();
}

absl::StatusOr<int64_t> CudaStreamHooks::Record() {
  RETURN_IF_ERROR(Use());
  core::MutexLock lock(mutex_);
  if (free_.empty()) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"));
    free_.push_back(event);
  }
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(free_.back(), stream_), "recording an event"));
  pending_.push_back(free_.back());
  free_.pop_back();
  return come_ + static_cast<int64_t>(pending_.size());
}

absl::StatusOr<bool> CudaStreamHooks::Done(int64_t event) {
  core::MutexLock lock(mutex_);
  while (!pending_.empty() && come_ < event) {
    const cudaError_t error = cudaEventQuery(pending_.front());
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    RETURN_IF_ERROR(StatusOf(error, "the work on the stream"));
    free_.push_back(pending_.front());
    pending_.pop_front();
    ++come_;
  }
  return come_ >= event;
}

absl::StatusOr<void*> CudaStreamHooks::Allocate(size_t bytes) {
  RETURN_IF_ERROR(Use());
  void* memory = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaMalloc(&memory, bytes), absl::StrCat("allocating ", bytes, " bytes")));
  core::MutexLock lock(mutex_);
  memory_.push_back(memory);
  return memory;
}

absl::StatusOr<std::shared_ptr<StreamHooks>> CudaStreamHooks::Another() { return MakeCudaStreamHooks(device_); }

}  // namespace

absl::StatusOr<std::shared_ptr<StreamHooks>> MakeCudaStreamHooks(int device) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || device < 0 || device >= devices) {
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat("CUDA: expected a device ", device, ", found ", devices,
                                               error == cudaSuccess ? "" : ": ",
                                               error == cudaSuccess ? "" : cudaGetErrorString(error)));
  }
  auto hooks = std::make_shared<CudaStreamHooks>(device);
  RETURN_IF_ERROR(hooks->Open());
  return hooks;
}

}  // namespace causeway::worker
