// The device interface of NcclCollectives: one stream, events on it, and memory.
//
//   NCCL's kernels ──► stream() ──► Record() = 7      an event is done when all work queued before it is done;
//                                   Done(7)?          events are numbered from 1, and are done in that order
//
// Implementations: CudaStreamHooks (worker/ranks/cuda), and tests/worker/ranks/fake_stream.h on the host alone.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway::worker {

class StreamHooks {
 public:
  virtual ~StreamHooks() = default;

  virtual void* stream() const = 0;  // as NCCL takes it: a cudaStream_t

  // Makes the device the calling thread's current one, which NCCL uses.
  virtual absl::Status Use() = 0;

  virtual absl::StatusOr<int64_t> Record() = 0;
  virtual absl::StatusOr<bool> Done(int64_t event) = 0;

  // Device memory, which is freed with this object.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;

  // Another stream of the same device: work queued on the two runs concurrently.
  virtual absl::StatusOr<std::shared_ptr<StreamHooks>> Another() = 0;
};

}  // namespace causeway::worker
