// A device as NcclCollectives needs it: one stream, events on it, and memory.
//
//   NCCL's kernels ──► stream() ──► Record() = 7      an event has come when all that was queued before it is done;
//                                   Done(7)?          events are numbered from 1, and come in their order
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

  // Makes the device the calling thread's current one, which NCCL takes.
  virtual absl::Status Use() = 0;

  virtual absl::StatusOr<int64_t> Record() = 0;
  virtual absl::StatusOr<bool> Done(int64_t event) = 0;

  // Device memory, which is freed with this.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;

  // Another stream of the same device: what is queued on the two runs side by side.
  virtual absl::StatusOr<std::shared_ptr<StreamHooks>> Another() = 0;
};

}  // namespace causeway::worker
