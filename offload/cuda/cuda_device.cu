#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"
#include "offload/cuda/adamw_kernel.h"
#include "offload/cuda/cuda_device.h"
#include "offload/cuda/current_device.h"
#include "offload/gpu_capability.h"

namespace causeway::offload {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int kBlocksPerMultiprocessor = 8;  // 2048 threads: all that one holds

class Gpu final : public CudaDevice {
 public:
  explicit Gpu(int index) : index_(index) {}
  ~Gpu() override;

  absl::Status Open();

  std::string name() const override { return name_; }
  int index() const override { return index_; }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  int64_t free_bytes() override;
  void Free(void* memory) override;
  absl::Status Pin(void* host, size_t bytes) override;
  void Unpin(void* host) override;
  void CopyToDevice(Queue queue, void* device, const void* host, size_t bytes) override;
  void CopyToHost(Queue queue, void* host, const void* device, size_t bytes) override;
  void AdamW(Queue queue, const AdamWConstants& constants, const AdamWArrays& arrays) override;
  Event MakeEvent() override { return MakeEventOf(cudaEventDisableTiming); }
  Event MakeTimedEvent() override { return MakeEventOf(cudaEventDefault); }
  double SecondsBetween(Event first, Event last) override;
  void Record(Event event, Queue queue) override;
  void Await(Queue queue, Event event) override;
  void AwaitOnHost(Event event) override;
  absl::Status status() const override;
  void* StreamOf(Queue queue) const override { return streams_[static_cast<int>(queue)]; }
  void CopyOn(void* stream, void* to, const void* from, size_t bytes, Event event) override;
  void Fail(const absl::Status& status) override;

 private:
  // While it lives, the device is the calling thread's current one; false after an error.
  class Chosen;
  // Keeps the first error. `what` names the attempted operation.
  bool Done(cudaError_t error, absl::string_view what);
  cudaStream_t Stream(Queue queue) const { return streams_[static_cast<int>(queue)]; }
  cudaEvent_t EventOf(Event event) const;
  Event MakeEventOf(unsigned flags);

  const int index_;
  std::string name_;
  int most_blocks_ = 0;
  cudaStream_t streams_[kNumQueues] = {};
  mutable core::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> memory_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, void*> pinned_ ABSL_GUARDED_BY(mutex_);  // requested address: its first page; null: not ours
};

class Gpu::Chosen {
 public:
  explicit Chosen(Gpu* gpu)
      : here_(gpu->index_), ready_(gpu->status().ok() && gpu->Done(here_.error(), "choosing the device")) {}
  explicit operator bool() const { return ready_; }

 private:
  const CurrentDevice here_;
  const bool ready_;
};

// CUDA keeps the last error until it is read; an error handled here must not show up in the next launch.
absl::Status ErrorOf(cudaError_t error, absl::string_view what) {
  cudaGetLastError();
  return absl::InternalError(absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

// Memory that is pinned in part cannot be copied in one piece.
absl::Status ExpectPinned(const char* host, size_t bytes) {
  cudaGetLastError();
  for (const char* at : {host, host + bytes - 1}) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, at) == cudaSuccess && attributes.type == cudaMemoryTypeHost) continue;
    cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat("pinning ", bytes,
                                                      " bytes: some of their pages are pinned already, with other "
                                                      "memory; arrays that are pinned must not share pages"));
  }
  return absl::OkStatus();
}

absl::Status Gpu::Open() {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index_); error != cudaSuccess) {
    return ErrorOf(error, "properties of the device");
  }
  name_ = properties.name;
  most_blocks_ = properties.multiProcessorCount * kBlocksPerMultiprocessor;
  const GpuCapability capability{name_, properties.major, properties.minor};
  RETURN_IF_ERROR(CheckCapability(capability));
  const Chosen chosen(this);
  if (!chosen) return status();
  cudaFuncAttributes kernel;  // a GPU newer than this build may lack it
  if (const cudaError_t error = cudaFuncGetAttributes(&kernel, AdamWKernel<GradientType::kFloat32>);
      error != cudaSuccess) {
    cudaGetLastError();
    return NoKernelFor(capability, CAUSEWAY_CUDA_ARCHITECTURES, cudaGetErrorString(error));
  }
  int least = 0, greatest = 0;
  if (!Done(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams")) return status();
  for (int i = 0; i < kNumQueues; ++i) {
    const int priority = core::PriorityOf(PurposeOf(static_cast<Queue>(i)), least, greatest);
    if (!Done(cudaStreamCreateWithPriority(&streams_[i], cudaStreamNonBlocking, priority), "making a stream")) break;
  }
  return status();
}

Gpu::~Gpu() {
  const CurrentDevice here(index_);
  if (here.error() != cudaSuccess) return;
  for (cudaStream_t stream : streams_) {
    if (stream == nullptr) continue;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  core::MutexLock lock(mutex_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  for (void* memory : memory_) cudaFree(memory);
  for (const auto& [host, page] : pinned_) {
    if (page != nullptr) cudaHostUnregister(page);
  }
  cudaGetLastError();
}

bool Gpu::Done(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return true;
  Fail(ErrorOf(error, what));
  return false;
}

void Gpu::Fail(const absl::Status& status) {
  core::MutexLock lock(mutex_);
  if (status_.ok()) status_ = status;
}

absl::Status Gpu::status() const {
  core::MutexLock lock(mutex_);
  return status_;
}

// ---- Memory ----

absl::StatusOr<void*> Gpu::Allocate(size_t bytes) {
  const Chosen chosen(this);
  if (!chosen) return status();
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, " has no room for ", bytes, " bytes: ", free, " of ", total, " are free"));
  }
  if (!Done(error, absl::StrCat("allocating ", bytes, " bytes"))) return status();
  core::MutexLock lock(mutex_);
  memory_.push_back(memory);
  return memory;
}

int64_t Gpu::free_bytes() {
  size_t free = 0, total = 0;
  const Chosen chosen(this);
  return chosen && cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

void Gpu::Free(void* memory) {
  if (memory == nullptr) return;
  {
    core::MutexLock lock(mutex_);
    CHECK(std::erase(memory_, memory) == 1);
  }
  const CurrentDevice here(index_);
  if (here.error() == cudaSuccess) Done(cudaFree(memory), "freeing memory");
}

// Whole pages, since the system pins only these.
absl::Status Gpu::Pin(void* host, size_t bytes) {
  const Chosen chosen(this);
  if (!chosen || bytes == 0) return status();
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(host);
  const uintptr_t begin = first / page_bytes * page_bytes;
  const uintptr_t end = (first + bytes + page_bytes - 1) / page_bytes * page_bytes;
  void* page = reinterpret_cast<void*>(begin);
  const cudaError_t error = cudaHostRegister(page, end - begin, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaErrorHostMemoryAlreadyRegistered) {
    RETURN_IF_ERROR(ExpectPinned(static_cast<const char*>(host), bytes));
    page = nullptr;
  } else if (error != cudaSuccess) {
    const absl::Status failed = ErrorOf(error, absl::StrCat("pinning ", bytes, " bytes"));
    return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(failed.message()) : failed;
  }
  core::MutexLock lock(mutex_);
  CHECK(pinned_.emplace(host, page).second);
  return absl::OkStatus();
}

void Gpu::Unpin(void* host) {
  void* page = nullptr;
  {
    core::MutexLock lock(mutex_);
    const auto found = pinned_.find(host);
    if (found == pinned_.end()) return;  // had no bytes
    page = found->second;
    pinned_.erase(found);
  }
  // Also after an error: the memory is about to be freed.
  const CurrentDevice here(index_);
  if (page != nullptr && here.error() == cudaSuccess) Done(cudaHostUnregister(page), "unpinning memory");
}

// ---- Queues ----

void Gpu::CopyToDevice(Queue queue, void* device, const void* host, size_t bytes) {
  const Chosen chosen(this);
  if (bytes == 0 || !chosen) return;
  Done(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, Stream(queue)), "copying to the device");
}

void Gpu::CopyToHost(Queue queue, void* host, const void* device, size_t bytes) {
  const Chosen chosen(this);
  if (bytes == 0 || !chosen) return;
  Done(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, Stream(queue)), "copying to the host");
}

void Gpu::CopyOn(void* stream, void* to, const void* from, size_t bytes, Event event) {
  const Chosen chosen(this);
  if (!chosen) return;
  const auto on = static_cast<cudaStream_t>(stream);
  if (!Done(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on), "copying on the device")) return;
  Done(cudaEventRecord(EventOf(event), on), "recording an event");
}

void Gpu::AdamW(Queue queue, const AdamWConstants& constants, const AdamWArrays& arrays) {
  const Chosen chosen(this);
  if (arrays.count == 0 || !chosen) return;
  const AdamWTask task = MakeAdamWTask(constants, arrays);
  const int64_t most_useful = (std::max(task.vectors, task.head) + kThreadsPerBlock - 1) / kThreadsPerBlock;
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(most_useful, 1, most_blocks_));
  if (arrays.gradient_type == GradientType::kFloat32) {
    AdamWKernel<GradientType::kFloat32><<<blocks, kThreadsPerBlock, 0, Stream(queue)>>>(task);
  } else {
    AdamWKernel<GradientType::kBfloat16><<<blocks, kThreadsPerBlock, 0, Stream(queue)>>>(task);
  }
  Done(cudaGetLastError(), "launching AdamW");
}

Device::Event Gpu::MakeEventOf(unsigned flags) {
  cudaEvent_t event = nullptr;
  // Blocking: a host thread that spins would take a core from the CPU's subgroups.
  if (const Chosen chosen(this); chosen)
    Done(cudaEventCreateWithFlags(&event, flags | cudaEventBlockingSync), "making an event");
  core::MutexLock lock(mutex_);
  if (event != nullptr) events_.push_back(event);
  return static_cast<Event>(events_.size()) - 1;
}

cudaEvent_t Gpu::EventOf(Event event) const {
  core::MutexLock lock(mutex_);
  return events_[event];
}

double Gpu::SecondsBetween(Event first, Event last) {
  float milliseconds = 0;
  if (const Chosen chosen(this); chosen)
    Done(cudaEventElapsedTime(&milliseconds, EventOf(first), EventOf(last)), "reading a time");
  return 1e-3 * milliseconds;
}

void Gpu::Record(Event event, Queue queue) {
  if (const Chosen chosen(this); chosen) Done(cudaEventRecord(EventOf(event), Stream(queue)), "recording an event");
}

void Gpu::Await(Queue queue, Event event) {
  if (const Chosen chosen(this); chosen)
    Done(cudaStreamWaitEvent(Stream(queue), EventOf(event), 0), "queueing a wait for an event");
}

// After an error the event may not have been recorded, and earlier copies may be in progress: their memory belongs to
// the caller again when this returns.
void Gpu::AwaitOnHost(Event event) {
  if (const Chosen chosen(this); chosen) {
    Done(cudaEventSynchronize(EventOf(event)), "waiting for what was queued");
    return;
  }
  if (const CurrentDevice here(index_); here.error() == cudaSuccess) cudaDeviceSynchronize();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> MakeCudaDevice(int index) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); };
    const std::string what = driver == 0 ? std::string("there is no NVIDIA driver")
                                         : absl::StrCat("the NVIDIA driver is for CUDA ", version(driver));
    return absl::UnavailableError(absl::StrCat("no CUDA device: ", cudaGetErrorString(error), " (", what,
                                               ", this program for CUDA ", version(runtime), ")"));
  }
  if (index < 0 || index >= devices) {
    return absl::NotFoundError(absl::StrCat("there is no CUDA device ", index, ": ", devices, " are there, from 0"));
  }
  auto device = std::make_unique<Gpu>(index);
  RETURN_IF_ERROR(device->Open());
  return device;
}

}  // namespace causeway::offload
